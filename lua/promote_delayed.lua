-- promote delayed: put retries that are due back into ready.
--
-- KEYS  1 delayed zset (envelope -> when it is due, server milliseconds)
--       2 ready list
-- ARGV  1 how many at most, 1 to 1000
--       2 1 to promote what is not due yet as well, else 0
-- Returns {moved, milliseconds until the next one is due, or -1 when there is none}. Call again while the
-- second number is 0.
-- Each goes to the end of ready like any new message, the earliest due first. A member is the whole envelope,
-- so there is no other key to look up and none to declare.

local fault = types_fault({KEYS[1], 'zset', KEYS[2], 'list'})
if fault then return fault end
local limit = tonumber(ARGV[1])
if limit > 1000 then limit = 1000 end
local now = now_ms()
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[2] == '1' and '+inf' or whole(now), 'LIMIT', 0, limit)
if #due > 0 then
  redis.call('ZREM', KEYS[1], unpack(due))
  redis.call('LPUSH', KEYS[2], unpack(due))
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if #first == 0 then return {#due, -1} end
if ARGV[2] == '1' then return {#due, 0} end
return {#due, math.max(0, math.ceil(tonumber(first[2]) - now))}
