-- extend: renew liveness of many deliveries.
--
-- KEYS  1 owners hash
--       2 liveness zset
-- ARGV  1 milliseconds until an unrenewed delivery may be taken over
--       2.. pid, ownership token, pid, ownership token, ...
-- Returns the indexes (from 0) of those that the token no longer owns. Expired liveness is renewed too: as
-- long as nobody took over, a late owner stays the owner.

local fault = types_fault({KEYS[1], 'hash', KEYS[2], 'zset'})
if fault then return fault end
local pids = {}
for i = 2, #ARGV, 2 do pids[#pids + 1] = ARGV[i] end
if #pids == 0 then return {} end

local owners = redis.call('HMGET', KEYS[1], unpack(pids))
local expiry = whole(now_ms() + tonumber(ARGV[1]))
local alive, again, lost = {}, {}, {}
for i = 1, #pids do
  if owners[i] == ARGV[i * 2 + 1] then
    alive[#alive + 1] = expiry
    alive[#alive + 1] = pids[i]
    again[#again + 1] = pids[i]
  else
    lost[#lost + 1] = i - 1
  end
end
if #again > 0 then
  -- A full server refuses a script's first write unless it frees memory. Without renewal just then, all that is in
  -- work would expire and run twice.
  redis.call('ZREM', KEYS[2], unpack(again))
  redis.call('ZADD', KEYS[2], unpack(alive))
end
return lost
