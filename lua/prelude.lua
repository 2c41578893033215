-- Put in front of every transition when it is loaded. Not a transition itself.
--
-- Everything that could make a command fail half way is asked before the first write, so that a transition
-- happens whole or not at all. A fault is one error reply: `QWTYPE <key> ...` or `QWNUMBER <key> ...`.

local function type_fault(key, want)
  local held = redis.call('TYPE', key).ok
  if held ~= 'none' and held ~= want then
    return redis.error_reply('QWTYPE ' .. key .. ' holds a ' .. held .. ' where a ' .. want .. ' belongs')
  end
end

-- `pairs_` is a flat list: key, type, key, type.
local function types_fault(pairs_)
  for i = 1, #pairs_, 2 do
    local fault = type_fault(pairs_[i], pairs_[i + 1])
    if fault then return fault end
  end
end

-- 18 digits leave room below the 64 bits of the server's counters.
local function is_counter(text)
  return not text or (#text <= 18 and string.find(text, '^%-?%d+$') ~= nil)
end

local function counter_fault(key)
  local fault = type_fault(key, 'string')
  if fault then return fault end
  local held = redis.call('GET', key)
  if not is_counter(held) then
    return redis.error_reply('QWNUMBER ' .. key .. ' holds "' .. string.sub(held, 1, 40) .. '" where a whole number belongs')
  end
end

local function counters_fault(keys)
  for i = 1, #keys do
    local fault = counter_fault(keys[i])
    if fault then return fault end
  end
end

-- `fields` are ledger fields, `<revision>:<what>`.
local function ledger_fault(ledger, fields)
  local fault = type_fault(ledger, 'hash')
  if fault or #fields == 0 then return fault end
  local held = redis.call('HMGET', ledger, unpack(fields))
  for i = 1, #fields do
    if not is_counter(held[i]) then
      return redis.error_reply('QWNUMBER ' .. ledger .. ' holds "' .. string.sub(held[i], 1, 40) ..
        '" in field ' .. fields[i] .. ' where a whole number belongs')
    end
  end
end

-- Milliseconds of the server's clock.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

-- The revision in an ownership token, `<revision> <worker> <reservation>`.
local function revision_of(token)
  return string.match(token, '^(%S+) ') or token
end

-- Job keys are declared whole in KEYS; the pid is what follows the prefix of `skip` bytes. They reach to the
-- end unless `count` says how many there are.
local function pids_of(first, skip, count)
  local pids, sub, keys, from = {}, string.sub, KEYS, skip + 1
  local before = first - 1
  for i = 1, count or #keys - before do pids[i] = sub(keys[before + i], from) end
  return pids
end
