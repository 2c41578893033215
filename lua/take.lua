-- take: own the one message that a worker's wait has moved into staging, without a reservation in between.
--
-- KEYS  1 staging list
--       2 fence hash (revision or "*" -> reason)
--       3 owners hash (pid -> ownership token)
--       4 liveness zset (pid -> expiry, server milliseconds)
--       5 processing list
--       6 stats total
--       7 stats processing
--       8 ledger hash (<revision>:<what> -> count)
--       9 job key
-- ARGV  1 the message, its very bytes
--       2 ownership token, `<revision> <worker> <reservation>`
--       3 milliseconds until an unrenewed delivery may be taken over
--       4 revision
--       5 length of the job key's prefix; what follows is the pid
-- Returns  {"claimed"}         this token owns it: since now, or since an earlier call whose answer was lost
--          {"fenced", reason}  it stays in staging
--          {"left"}            it is not in staging any more, or something is known of its pid, or a counter is
--                              no number: nothing was done, and reserve and claim say the rest
-- Every key that is written was read before by a command that wants its type, so a wrong type ends this before
-- the first write. Which key it is, reserve and claim say, too.

local pid = string.sub(KEYS[9], tonumber(ARGV[5]) + 1)
local owner = redis.call('HGET', KEYS[3], pid)
if owner == ARGV[2] then
  redis.call('ZADD', KEYS[4], whole(now_ms() + tonumber(ARGV[3])), pid)
  return {'claimed'}
end

local reasons = redis.call('HMGET', KEYS[2], ARGV[4], '*')
local reason = reasons[1] or reasons[2]
if reason then return {'fenced', reason} end

local field = ARGV[4] .. ':claimed'
-- The length is asked for its key's type alone.
local usual = not owner and redis.call('LPOS', KEYS[1], ARGV[1], 'RANK', -1)
  and not redis.call('ZSCORE', KEYS[4], pid) and redis.call('LLEN', KEYS[5])
  and is_counter(redis.call('GET', KEYS[6])) and is_counter(redis.call('GET', KEYS[7]))
  and is_counter(redis.call('HGET', KEYS[8], field))
-- First a write that a full server refuses, and that leaves an earlier record alone.
if not usual or not redis.call('SET', KEYS[9], ARGV[1], 'NX') then return {'left'} end

redis.call('HSET', KEYS[3], pid, ARGV[2])
redis.call('ZADD', KEYS[4], whole(now_ms() + tonumber(ARGV[3])), pid)
redis.call('LPUSH', KEYS[5], pid)
redis.call('INCRBY', KEYS[6], 1)
redis.call('INCRBY', KEYS[7], 1)
redis.call('HINCRBY', KEYS[8], field, 1)
redis.call('LREM', KEYS[1], -1, ARGV[1])
return {'claimed'}
