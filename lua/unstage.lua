-- unstage: give what a blocking wake-up moved into staging back to the head of ready.
--
-- KEYS  1 staging list
--       2 ready list
-- ARGV  1 how many at most, 1 to 1000
-- Returns how many were moved. Call again until it returns 0.
-- Both lists have their head at the right, so the newest end of staging goes first and order is kept.

local fault = types_fault({KEYS[1], 'list', KEYS[2], 'list'})
if fault then return fault end
local limit = tonumber(ARGV[1])
if limit > 1000 then limit = 1000 end
local raws = redis.call('LRANGE', KEYS[1], 0, limit - 1)
if #raws == 0 then return 0 end
redis.call('LTRIM', KEYS[1], #raws, -1)
redis.call('RPUSH', KEYS[2], unpack(raws))
return #raws
