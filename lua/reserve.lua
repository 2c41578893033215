-- reserve: move raw payloads out of staging and ready under a deadline, before anybody decodes them.
--
-- KEYS  1 staging list
--       2 ready list
--       3 reservations zset (id -> deadline, server milliseconds)
--       4 this reservation's list
--       5 fence hash (revision or "*" -> reason)
-- ARGV  1 revision
--       2 reservation id, chosen by the client
--       3 how many at most, 0 to 1000; 0 only asks for the fence and checks the keys
--       4 milliseconds until anybody may recover the reservation
-- Returns  {"fenced", reason}
--          {"empty"}
--          {"taken", deadline, raw, raw, ...} in the order of the queue
-- The head of staging and of ready is the right end. The same id again returns what it holds: a lost reply
-- is asked for again with the same id, also when a fence came in between, since that work is already out.

local fault = types_fault({KEYS[1], 'list', KEYS[2], 'list', KEYS[3], 'zset', KEYS[4], 'list', KEYS[5], 'hash'})
if fault then return fault end

local held = redis.call('LRANGE', KEYS[4], 0, -1)
if #held > 0 then
  local deadline = redis.call('ZSCORE', KEYS[3], ARGV[2])
  if deadline then
    -- Redis gives a script a score as text, Dragonfly as a number.
    deadline = whole(tonumber(deadline))
  else
    deadline = whole(now_ms() + tonumber(ARGV[4]))
    redis.call('ZADD', KEYS[3], deadline, ARGV[2])
  end
  return {'taken', deadline, unpack(held)}
end

local reasons = redis.call('HMGET', KEYS[5], ARGV[1], '*')
local reason = reasons[1] or reasons[2]
if reason then return {'fenced', reason} end

local limit = tonumber(ARGV[3])
if limit < 1 then return {'empty'} end
if limit > 1000 then limit = 1000 end

local taken = redis.call('RPOP', KEYS[1], limit) or {}
if #taken < limit then
  local more = redis.call('RPOP', KEYS[2], limit - #taken) or {}
  for i = 1, #more do taken[#taken + 1] = more[i] end
end
if #taken == 0 then return {'empty'} end

local deadline = whole(now_ms() + tonumber(ARGV[4]))
redis.call('RPUSH', KEYS[4], unpack(taken))
redis.call('ZADD', KEYS[3], deadline, ARGV[2])
return {'taken', deadline, unpack(taken)}
