-- read: several reads at one moment, for a server that is too full to take a MULTI.
--
-- KEYS  every key that is read
-- ARGV  for each command the number of its words, then the words
-- Returns the replies in order. The first error ends it and is the answer. Writes nothing.

local replies, at = {}, 1
while at <= #ARGV do
  local count, words = tonumber(ARGV[at]), {}
  for i = 1, count do words[i] = ARGV[at + i] end
  replies[#replies + 1] = redis.call(unpack(words))
  at = at + count + 1
end
return replies
