-- beat: say that a worker lives and what it does, and clear away those that were not heard of any more.
--
-- KEYS  1 workers zset (worker -> expiry, server milliseconds)
--       2 roster hash (worker -> JSON record)
-- ARGV  1 worker
--       2 milliseconds until the worker no longer counts as alive; 0 takes it off
--       3 its record, a JSON object; the server's time of its first beat is added in front as "started"
-- Returns how many expired workers were cleared, at most 100 in one call.
-- A worker that comes back after it was cleared begins anew.

local fault = types_fault({KEYS[1], 'zset', KEYS[2], 'hash'})
if fault then return fault end

local now = now_ms()
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100)
local cleared = 0
for i = 1, #gone do
  if gone[i] ~= ARGV[1] then cleared = cleared + 1 end
end
local held = redis.call('HGET', KEYS[2], ARGV[1])
if #gone > 0 then
  redis.call('ZREM', KEYS[1], unpack(gone))
  redis.call('HDEL', KEYS[2], unpack(gone))
end

if tonumber(ARGV[2]) < 1 then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  return cleared
end
-- First a write that a full server does not refuse.
redis.call('ZREM', KEYS[1], ARGV[1])
local started = held and string.match(held, '^{"started":(%d+),') or whole(now)
redis.call('ZADD', KEYS[1], whole(now + tonumber(ARGV[2])), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], '{"started":' .. started .. ',' .. string.sub(ARGV[3], 2))
return cleared
