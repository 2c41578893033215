-- recover reservation: give back what was reserved and never claimed, if its deadline has passed.
--
-- KEYS  1 reservations zset
--       2 the reservation's list
--       3 ready list
-- ARGV  1 reservation id (a hint: the deadline is looked up again here)
-- Returns how many payloads went back to the head of ready, in order; -1 when the reservation is not due
-- or does not exist.

local fault = types_fault({KEYS[1], 'zset', KEYS[2], 'list', KEYS[3], 'list'})
if fault then return fault end
local deadline = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not deadline or tonumber(deadline) > now_ms() then return -1 end

local raws = redis.call('LRANGE', KEYS[2], 0, -1)
redis.call('ZREM', KEYS[1], ARGV[1])
if #raws > 0 then
  redis.call('DEL', KEYS[2])
  local head = {}
  for i = #raws, 1, -1 do head[#head + 1] = raws[i] end
  redis.call('RPUSH', KEYS[3], unpack(head))
end
return #raws
