-- claim: turn a reservation into owned deliveries, after the client has decoded it.
--
-- KEYS  1 reservations zset
--       2 this reservation's list
--       3 owners hash (pid -> ownership token)
--       4 liveness zset (pid -> expiry, server milliseconds)
--       5 processing list
--       6 stats total
--       7 stats processing
--       8 poison list
--       9 ledger hash (<revision>:<what> -> count)
--       10.. job keys, one for each entry that could be decoded, in the reservation's order
-- ARGV  1 reservation id
--       2 the deadline that reserve returned: tells this reservation from a later one of the same id
--       3 ownership token, `<revision> <worker> <reservation>`
--       4 milliseconds until an unrenewed delivery may be taken over
--       5 revision
--       6 length of the job keys' prefix; what follows is the pid
--       7 number of poison entries, each followed in ARGV by two values:
--         position in the reservation (from 1), JSON object that says why
-- Returns  {"claimed", index, ...}  indexes (from 0, among the job keys) that were NOT claimed, because the
--                                   pid is owned, has a job record or came twice; they stay reserved
--          {"before", index, ...}   the reservation does not hold these entries any more: claimed by an
--                                   earlier call whose reply was lost, or recovered by others. The indexes
--                                   are the ones that this token owns; their liveness was renewed
-- An entry of the poison list is one line of JSON, a line feed, and the raw bytes as they were.

local fault = types_fault({KEYS[1], 'zset', KEYS[2], 'list', KEYS[3], 'hash', KEYS[4], 'zset', KEYS[5], 'list', KEYS[8], 'list'})
  or counters_fault({KEYS[6], KEYS[7]})
  or ledger_fault(KEYS[9], {ARGV[5] .. ':claimed', ARGV[5] .. ':poisoned'})
if fault then return fault end

local pids = pids_of(10, tonumber(ARGV[6]))
local poisoned = tonumber(ARGV[7])
local now = now_ms()
local expiry = whole(now + tonumber(ARGV[4]))
local owners = {}
if #pids > 0 then owners = redis.call('HMGET', KEYS[3], unpack(pids)) end

local raws = {}
-- As numbers: Redis gives a script a score as text, Dragonfly as a number.
local deadline = redis.call('ZSCORE', KEYS[1], ARGV[1])
if deadline and tonumber(deadline) == tonumber(ARGV[2]) then
  raws = redis.call('LRANGE', KEYS[2], 0, -1)
end
if #raws ~= #pids + poisoned then
  local reply, alive = {'before'}, {}
  for i = 1, #pids do
    if owners[i] == ARGV[3] then
      reply[#reply + 1] = i - 1
      alive[#alive + 1] = expiry
      alive[#alive + 1] = pids[i]
    end
  end
  if #alive > 0 then redis.call('ZADD', KEYS[4], unpack(alive)) end
  return reply
end

local token = ARGV[3]
local why = {}
for i = 8, #ARGV, 2 do why[tonumber(ARGV[i])] = ARGV[i + 1] end

local recorded = 0
if #pids > 0 then recorded = redis.call('EXISTS', unpack(KEYS, 10)) end

local records, tokens, alive, claimed, left, poison = {}, {}, {}, {}, {}, {}
local reply, seen, entry, n = {'claimed'}, {}, 0, 0
for position = 1, #raws do
  local raw = raws[position]
  if poisoned > 0 and why[position] then
    poison[#poison + 1] = '{"at":' .. whole(now) .. ',' .. string.sub(why[position], 2) .. '\n' .. raw
  else
    entry = entry + 1
    local pid = pids[entry]
    if owners[entry] or seen[pid] or (recorded > 0 and redis.call('EXISTS', KEYS[9 + entry]) == 1) then
      reply[#reply + 1] = entry - 1
      left[#left + 1] = raw
    else
      seen[pid] = true
      n = n + 1
      claimed[n] = pid
      local odd, even = 2 * n - 1, 2 * n
      records[odd], records[even] = KEYS[9 + entry], raw
      tokens[odd], tokens[even] = pid, token
      alive[odd], alive[even] = expiry, pid
    end
  end
end
if #left == #raws then return reply end

if n > 0 then
  redis.call('MSET', unpack(records))
  redis.call('HSET', KEYS[3], unpack(tokens))
  -- The server keeps a small sorted set as a flat list and walks it twice for each addition. A member longer
  -- than 64 bytes makes it a tree, which it stays when that member is gone.
  local long = n >= 16 and redis.call('EXISTS', KEYS[4]) == 0 and string.rep('-', 65)
  if long then redis.call('ZADD', KEYS[4], expiry, long) end
  redis.call('ZADD', KEYS[4], unpack(alive))
  if long then redis.call('ZREM', KEYS[4], long) end
  redis.call('LPUSH', KEYS[5], unpack(claimed))
  redis.call('INCRBY', KEYS[6], n)
  redis.call('INCRBY', KEYS[7], n)
  redis.call('HINCRBY', KEYS[9], ARGV[5] .. ':claimed', n)
end
if #poison > 0 then
  redis.call('LPUSH', KEYS[8], unpack(poison))
  redis.call('HINCRBY', KEYS[9], ARGV[5] .. ':poisoned', #poison)
end
redis.call('DEL', KEYS[2])
if #left > 0 then
  redis.call('RPUSH', KEYS[2], unpack(left))
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return reply
