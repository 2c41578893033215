-- recover delivery: take over deliveries whose owner stopped renewing, and what workers without tokens left.
--
-- KEYS  1 owners hash
--       2 liveness zset
--       3 ready list
--       4 processing list
--       5 stats total
--       6 stats processing
--       7 ledger hash
--       8 takeovers hash (pid -> how often its owner was lost)
--       9 dead list
--       10 stats failed
--       11 delayed zset
--       12.. job keys of the candidates (hints: everything is looked up again here)
--       after them their reason keys
-- ARGV  1 length of the job keys' prefix; what follows is the pid
--       2 age in milliseconds after which a processing entry without a token counts as left behind
--       3 the takeover that a message does not survive, 0 for none
--       4 milliseconds to keep the record of a message that did not, 0 for ever
--       5 milliseconds to keep its reason
--       6 milliseconds after which takeovers are forgotten when there was none since
--       7.. for each candidate the second in which it was published, or "" to leave it alone without a token
-- Returns {recovered, dropped, dead}: payloads that went back, entries that were cleared because their record
-- is gone, and messages that went to the dead list because they lost too many owners.
-- The first time a message goes back to the head of ready, first candidate foremost. From the second time on it
-- goes back by way of the delayed zset, with the same bytes, after a random wait that doubles each time (1 s, 2 s,
-- ... 1 min, half as long to one and a half times as long): what kills its worker takes those down that were
-- prefetched with it, so they are parted from it before their own count is full.
-- Missing liveness means expired. The old token dies; the old revision is booked as taken over.

local total = #ARGV - 6
local pids = pids_of(12, tonumber(ARGV[1]), total)
local fault = types_fault({KEYS[1], 'hash', KEYS[2], 'zset', KEYS[3], 'list', KEYS[4], 'list', KEYS[8], 'hash', KEYS[9], 'list', KEYS[11], 'zset'})
  or counters_fault({KEYS[5], KEYS[6], KEYS[10]})
if fault then return fault end
if total == 0 then return {0, 0, 0} end

local now, age = now_ms(), tonumber(ARGV[2])
local owners = redis.call('HMGET', KEYS[1], unpack(pids))
local expired, stale, legacy, done, sums = {}, {}, {}, {}, {}
for i = 1, #pids do
  local pid = pids[i]
  if not done[pid] then
    done[pid] = true
    if owners[i] then
      local expiry = redis.call('ZSCORE', KEYS[2], pid)
      if not expiry or tonumber(expiry) <= now then
        expired[#expired + 1] = i
        local revision = revision_of(owners[i])
        sums[revision] = (sums[revision] or 0) + 1
      end
    else
      stale[#stale + 1] = pid
      local published = tonumber(ARGV[6 + i])
      if published and now - published * 1000 >= age then legacy[#legacy + 1] = i end
    end
  end
end

local fields, amounts = {}, {}
for revision, amount in pairs(sums) do
  fields[#fields + 1] = revision .. ':taken_over'
  amounts[#amounts + 1] = amount
end
fault = ledger_fault(KEYS[7], fields)
if fault then return fault end

-- The first writes only free memory, so that a full server can still be recovered.
if #stale > 0 then redis.call('ZREM', KEYS[2], unpack(stale)) end
local gone, head, dead, dropped, left = {}, {}, {}, 0, 0
local survived, over, apart, limit = {}, {}, {}, tonumber(ARGV[3])
local function give_back(i)
  local pid = pids[i]
  local raw = redis.call('MGET', KEYS[11 + i])[1]
  local times = (tonumber(redis.call('HGET', KEYS[8], pid) or 0) or 0) + 1
  if raw and limit > 0 and times >= limit then
    dead[#dead + 1] = {i, times, owners[i] or ''}
    over[#over + 1] = pid
  elseif raw then
    gone[#gone + 1] = KEYS[11 + i]
    if times == 1 then
      head[#head + 1] = raw
    else
      local chance = tonumber(string.sub(redis.sha1hex(pid .. whole(now)), 1, 6), 16) / 16777216
      apart[#apart + 1] = whole(now + math.min(60000, 1000 * 2 ^ math.min(times - 2, 10)) * (0.5 + chance))
      apart[#apart + 1] = raw
    end
    survived[#survived + 1] = pid
    survived[#survived + 1] = whole(times)
  else
    dropped = dropped + 1
    over[#over + 1] = pid
  end
  left = left + 1
end
for n = #legacy, 1, -1 do
  local i = legacy[n]
  -- Old entries are at the right. Whoever removes the entry may give it back.
  if redis.call('LREM', KEYS[4], -1, pids[i]) == 1 then give_back(i) end
end
-- What is overdue is old as well, so it is at the right, unless there is a longer history of others.
local in_work = redis.call('HLEN', KEYS[1])
local from, first, last, step = 1, #expired, 1, -1
if redis.call('LLEN', KEYS[4]) - in_work < in_work then from, first, last, step = -1, 1, #expired, 1 end
for n = first, last, step do redis.call('LREM', KEYS[4], from, pids[expired[n]]) end
for n = #expired, 1, -1 do
  local i = expired[n]
  redis.call('HDEL', KEYS[1], pids[i])
  redis.call('ZREM', KEYS[2], pids[i])
  give_back(i)
end
if left == 0 then return {0, 0, 0} end
if #over > 0 then redis.call('HDEL', KEYS[8], unpack(over)) end
if #gone > 0 then
  redis.call('DEL', unpack(gone))
  if #head > 0 then redis.call('RPUSH', KEYS[3], unpack(head)) end
  if #apart > 0 then redis.call('ZADD', KEYS[11], unpack(apart)) end
  redis.call('DECRBY', KEYS[5], #gone)
  redis.call('HSET', KEYS[8], unpack(survived))
  redis.call('PEXPIRE', KEYS[8], ARGV[6])
end
for n = #dead, 1, -1 do
  local i, times, token = unpack(dead[n])
  redis.call('LPUSH', KEYS[9], pids[i])
  if tonumber(ARGV[4]) > 0 then redis.call('PEXPIRE', KEYS[11 + i], ARGV[4]) end
  local detail = cjson.encode({'lost its owner ' .. whole(times) .. ' times, the last was ' .. token})
  local why = '{"at":' .. whole(now) .. ',"why":"crash-loop","detail":' .. string.sub(detail, 2, -2) .. '}'
  redis.call('SET', KEYS[11 + total + i], why, 'PX', ARGV[5])
end
if #dead > 0 then redis.call('INCRBY', KEYS[10], #dead) end
redis.call('DECRBY', KEYS[6], left)
for i = 1, #fields do redis.call('HINCRBY', KEYS[7], fields[i], amounts[i]) end
return {#gone, dropped, #dead}
