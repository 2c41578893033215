-- settle: commit, reject or release many deliveries, each only if its token still owns it.
--
-- KEYS  1 owners hash
--       2 liveness zset
--       3 processing list
--       4 ready list
--       5 failed list
--       6 stats total
--       7 stats processing
--       8 stats success
--       9 stats failed
--       10 ledger hash
--       11.. job keys, one for each entry
-- ARGV  1 length of the job keys' prefix; what follows is the pid
--       2 milliseconds to keep the record of a rejected message, 0 for ever
--       3 one letter for each entry: c commit, r reject, l release
--       4.. ownership token of each entry
-- Returns one string with a letter for each entry:
--       c committed   r rejected   l released
--       s superseded: another token owns the message
--       m missing: nobody owns it, or its record is gone so that it cannot be released
-- Releases go to the head of ready (its right end), the first entry foremost, with the bytes that were taken.

local pids = pids_of(11, tonumber(ARGV[1]))
local fault = types_fault({KEYS[1], 'hash', KEYS[2], 'zset', KEYS[3], 'list', KEYS[4], 'list', KEYS[5], 'list'})
  or counters_fault({KEYS[6], KEYS[7], KEYS[8], KEYS[9]})
if fault then return fault end
if #pids == 0 then return '' end

local owners = redis.call('HMGET', KEYS[1], unpack(pids))
local actions, verdicts = ARGV[3], {}
local settled, gone, failed, back, kept, done = {}, {}, {}, {}, {}, {}
local moves = {c = {}, r = {}, l = {}}
local committed, rejected, released = 0, 0, 0
local token, revision = nil, nil

for i = 1, #pids do
  local pid, action = pids[i], string.sub(actions, i, i)
  local verdict = action
  if not owners[i] or done[pid] then
    verdict = 'm'
  elseif owners[i] ~= ARGV[3 + i] then
    verdict = 's'
  elseif action == 'l' then
    -- GET fails on another type, MGET does not: such a record is as good as none.
    local raw = redis.call('MGET', KEYS[10 + i])[1]
    if raw then back[#back + 1] = raw else verdict = 'm' end
  end
  if verdict == action then
    done[pid] = true
    settled[#settled + 1] = pid
    if action == 'c' then
      committed = committed + 1
      gone[#gone + 1] = KEYS[10 + i]
    elseif action == 'l' then
      released = released + 1
      gone[#gone + 1] = KEYS[10 + i]
    else
      rejected = rejected + 1
      failed[#failed + 1] = pid
      kept[#kept + 1] = KEYS[10 + i]
    end
    if owners[i] ~= token then
      token = owners[i]
      revision = revision_of(token)
    end
    moves[action][revision] = (moves[action][revision] or 0) + 1
  end
  verdicts[i] = verdict
end
if #settled == 0 then return table.concat(verdicts) end

local names = {c = ':committed', r = ':rejected', l = ':released'}
local fields, amounts = {}, {}
for action, sums in pairs(moves) do
  for of, amount in pairs(sums) do
    fields[#fields + 1] = of .. names[action]
    amounts[#amounts + 1] = amount
  end
end
fault = ledger_fault(KEYS[10], fields)
if fault then return fault end

-- The first writes only free memory, so that a full server can still be settled.
redis.call('HDEL', KEYS[1], unpack(settled))
redis.call('ZREM', KEYS[2], unpack(settled))
-- New entries are at the left. Newest first leaves every scan short.
for i = #settled, 1, -1 do redis.call('LREM', KEYS[3], 1, settled[i]) end
if #gone > 0 then redis.call('DEL', unpack(gone)) end
redis.call('DECRBY', KEYS[7], #settled)
if committed > 0 then redis.call('INCRBY', KEYS[8], committed) end
if rejected > 0 then
  redis.call('LPUSH', KEYS[5], unpack(failed))
  redis.call('INCRBY', KEYS[9], rejected)
  if tonumber(ARGV[2]) > 0 then
    for i = 1, #kept do redis.call('PEXPIRE', kept[i], ARGV[2]) end
  end
end
if released > 0 then
  local head = {}
  for i = #back, 1, -1 do head[#head + 1] = back[i] end
  redis.call('RPUSH', KEYS[4], unpack(head))
  redis.call('DECRBY', KEYS[6], released)
end
for i = 1, #fields do redis.call('HINCRBY', KEYS[10], fields[i], amounts[i]) end
return table.concat(verdicts)
