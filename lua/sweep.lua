-- sweep: retry, park or drop entries of the failed list (or retry and drop those of the dead list).
--
-- KEYS  1 the list that is swept, failed or dead
--       2 ready list
--       3 dead list
--       4.. job keys of the candidates
--       after them their reason keys
-- ARGV  1 length of the job keys' prefix; what follows is the pid
--       2 milliseconds to keep the record of a parked message, 0 for ever
--       3 milliseconds to keep a reason
--       4 one letter for each candidate: q retry, p park in dead, g drop, since its record is gone
--       5.. for each candidate four values: where it is in the list, counted from the right end (0 is the
--         oldest); SHA-1 of its record, "" for g; then
--         q: a new envelope in two parts, before and after the number of its timestamp
--         p: why, a JSON object; ""
--         g: ""; ""
-- Returns one string with a letter for each candidate: the same letter when it was done, x when nothing was
-- done, since the entry has moved or its record is another one by now: read again.
-- A candidate is a hint: its place and its record are compared here, so whoever comes first moves it.
-- A retry is a new message at the end of ready, dated now; the old record and its reason go.

local count = #ARGV[4]
local pids = pids_of(4, tonumber(ARGV[1]), count)
local fault = types_fault({KEYS[1], 'list', KEYS[2], 'list', KEYS[3], 'list'})
if fault then return fault end

local now, removed = now_ms(), '\0removed'
local second = whole(math.floor(now / 1000))
local verdicts, places, taken, fresh, parked, gone, kept, reasons = {}, {}, {}, {}, {}, {}, {}, {}
for i = 1, count do
  local verdict, base = string.sub(ARGV[4], i, i), 1 + i * 4
  local place = -1 - tonumber(ARGV[base])
  local record = redis.call('MGET', KEYS[3 + i])[1]
  if taken[place] or redis.call('LINDEX', KEYS[1], place) ~= pids[i] then
    verdict = 'x'
  elseif verdict == 'g' then
    if record then verdict = 'x' end
  elseif not record or redis.sha1hex(record) ~= ARGV[base + 1] then
    verdict = 'x'
  end
  if verdict ~= 'x' then
    places[#places + 1] = place
    taken[place] = true
  end
  if verdict == 'q' then
    fresh[#fresh + 1] = ARGV[base + 2] .. second .. ARGV[base + 3]
    gone[#gone + 1] = KEYS[3 + i]
    gone[#gone + 1] = KEYS[3 + count + i]
  elseif verdict == 'p' then
    parked[#parked + 1] = pids[i]
    kept[#kept + 1] = KEYS[3 + i]
    reasons[#reasons + 1] = KEYS[3 + count + i]
    reasons[#reasons + 1] = '{"at":' .. whole(now) .. ',' .. string.sub(ARGV[base + 2], 2)
  elseif verdict == 'g' then
    gone[#gone + 1] = KEYS[3 + count + i]
  end
  verdicts[i] = verdict
end
if #places == 0 then return table.concat(verdicts) end

-- Marked by their place and removed in one walk over the list, however many entries lie between them.
for i = 1, #places do redis.call('LSET', KEYS[1], places[i], removed) end
redis.call('LREM', KEYS[1], -#places, removed)
if #gone > 0 then redis.call('DEL', unpack(gone)) end
if #fresh > 0 then redis.call('LPUSH', KEYS[2], unpack(fresh)) end
if #parked > 0 then
  redis.call('LPUSH', KEYS[3], unpack(parked))
  if tonumber(ARGV[2]) > 0 then
    for i = 1, #kept do redis.call('PEXPIRE', kept[i], ARGV[2]) end
  end
  for i = 1, #reasons, 2 do redis.call('SET', reasons[i], reasons[i + 1], 'PX', ARGV[3]) end
end
return table.concat(verdicts)
