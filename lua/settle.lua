-- settle: commit, reject, retry later, give up or release many deliveries, each only if its token owns it.
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
--       11 dead list
--       12 delayed zset (envelope -> when it is due, server milliseconds)
--       13 takeovers hash
--       14.. job keys, one for each entry
--       after them the reason keys, one for each entry whose letter is r or d
-- ARGV  1 length of the job keys' prefix; what follows is the pid
--       2 milliseconds to keep the record of a rejected message, 0 for ever
--       3 one letter for each entry: c commit, r reject, d reject for good, y reject and retry later, l release
--       4.. ownership token of each entry
--       after them milliseconds to keep a reason, and for each entry in order
--         r and d: why, a JSON object, or "" for nothing to keep
--         y: delay in milliseconds, and a new envelope in two parts: what comes before the number of its
--            timestamp and what follows it
--       (nothing after the tokens when there is no r, d or y)
-- Returns one string with a letter for each entry:
--       c committed   r rejected   d rejected for good   y rejected, to be retried   l released
--       s superseded: another token owns the message
--       m missing: nobody owns it, or its record is gone so that it cannot be released
-- Releases go to the head of ready (its right end), the first entry foremost, with the bytes that were taken.
-- A retry is a new message: the member of the delayed zset is its whole envelope, so that nothing else has to
-- be found when it is due. Its timestamp is the second in which it is due. The old record goes.

-- Take pids off the processing list. New entries are at its left, and only that end is looked at, so that
-- history costs nothing. When they are a good part of the `in_work` newest, these are read and those that stay
-- are written back: three commands instead of one for each pid.
local function unlist(list, pids, in_work)
  local going, left = {}, #pids
  for i = 1, left do going[pids[i]] = true end
  if left >= 8 and in_work <= 8 * left and in_work <= 4000 then
    local newest = redis.call('LRANGE', list, 0, in_work - 1)
    local stay, cut = {}, 0
    for i = 1, #newest do
      if left == 0 then break end
      if going[newest[i]] then
        going[newest[i]], left = nil, left - 1
      else
        stay[#stay + 1] = newest[i]
      end
      cut = i
    end
    local back = {}
    for i = #stay, 1, -1 do back[#back + 1] = stay[i] end
    redis.call('LTRIM', list, cut, -1)
    if #back > 0 then redis.call('LPUSH', list, unpack(back)) end
  end
  if left == 0 then return end
  -- Newest first leaves every scan short.
  for i = #pids, 1, -1 do
    if going[pids[i]] then redis.call('LREM', list, 1, pids[i]) end
  end
end

local actions, total = ARGV[3], #ARGV[3]
local pids = pids_of(14, tonumber(ARGV[1]), total)
local fault = types_fault({KEYS[1], 'hash', KEYS[2], 'zset', KEYS[3], 'list', KEYS[4], 'list', KEYS[5], 'list'})
  or counters_fault({KEYS[6], KEYS[7], KEYS[8], KEYS[9]})
if fault then return fault end
if total == 0 then return '' end
local more = #ARGV > 3 + total
if more then
  fault = types_fault({KEYS[11], 'list', KEYS[12], 'zset'})
  if fault then return fault end
end
local counted = redis.call('TYPE', KEYS[13]).ok == 'hash'

local owners = redis.call('HMGET', KEYS[1], unpack(pids))
local verdicts = {}
local settled, gone, failed, dead, later, back, kept, reasons, done = {}, {}, {}, {}, {}, {}, {}, {}, {}
local moves = {c = {}, r = {}, d = {}, y = {}, l = {}}
local committed, rejected, released = 0, 0, 0
local token, revision = nil, nil
local now = more and now_ms()
local at, reason_key, finished = 5 + total, 14 + total, {}

for i = 1, #pids do
  local pid, action = pids[i], string.sub(actions, i, i)
  local verdict = action
  if not owners[i] or done[pid] then
    verdict = 'm'
  elseif owners[i] ~= ARGV[3 + i] then
    verdict = 's'
  elseif action == 'l' then
    -- GET fails on another type, MGET does not: such a record is as good as none.
    local raw = redis.call('MGET', KEYS[13 + i])[1]
    if raw then back[#back + 1] = raw else verdict = 'm' end
  end
  if verdict == action then
    done[pid] = true
    settled[#settled + 1] = pid
    if action == 'c' then
      committed = committed + 1
      gone[#gone + 1] = KEYS[13 + i]
    elseif action == 'l' then
      released = released + 1
      gone[#gone + 1] = KEYS[13 + i]
    elseif action == 'y' then
      rejected = rejected + 1
      local due = now + tonumber(ARGV[at])
      later[#later + 1] = whole(due)
      later[#later + 1] = ARGV[at + 1] .. whole(math.floor(due / 1000)) .. ARGV[at + 2]
      gone[#gone + 1] = KEYS[13 + i]
    else
      rejected = rejected + 1
      local list = action == 'd' and dead or failed
      list[#list + 1] = pid
      kept[#kept + 1] = KEYS[13 + i]
      if more and ARGV[at] ~= '' then
        reasons[#reasons + 1] = KEYS[reason_key]
        reasons[#reasons + 1] = '{"at":' .. whole(now) .. ',' .. string.sub(ARGV[at], 2)
      end
    end
    if counted and action ~= 'l' then finished[#finished + 1] = pid end
    if owners[i] ~= token then
      token = owners[i]
      revision = revision_of(token)
    end
    moves[action][revision] = (moves[action][revision] or 0) + 1
  end
  verdicts[i] = verdict
  if more then
    if action == 'y' then
      at = at + 3
    elseif action == 'r' or action == 'd' then
      at, reason_key = at + 1, reason_key + 1
    end
  end
end
if #settled == 0 then return table.concat(verdicts) end

local names = {c = ':committed', r = ':rejected', d = ':rejected', y = ':rejected', l = ':released'}
local fields, amounts = {}, {}
for action, sums in pairs(moves) do
  for of, amount in pairs(sums) do
    fields[#fields + 1] = of .. names[action]
    amounts[#amounts + 1] = amount
  end
end
fault = ledger_fault(KEYS[10], fields)
if fault then return fault end

local in_work = redis.call('HLEN', KEYS[1])
-- The first writes only free memory, so that a full server can still be settled.
redis.call('HDEL', KEYS[1], unpack(settled))
redis.call('ZREM', KEYS[2], unpack(settled))
unlist(KEYS[3], settled, in_work)
if #finished > 0 then redis.call('HDEL', KEYS[13], unpack(finished)) end
if #gone > 0 then redis.call('DEL', unpack(gone)) end
redis.call('DECRBY', KEYS[7], #settled)
if committed > 0 then redis.call('INCRBY', KEYS[8], committed) end
if rejected > 0 then
  if #failed > 0 then redis.call('LPUSH', KEYS[5], unpack(failed)) end
  if #dead > 0 then redis.call('LPUSH', KEYS[11], unpack(dead)) end
  if #later > 0 then redis.call('ZADD', KEYS[12], unpack(later)) end
  redis.call('INCRBY', KEYS[9], rejected)
  for i = 1, #reasons, 2 do redis.call('SET', reasons[i], reasons[i + 1], 'PX', ARGV[4 + total]) end
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
