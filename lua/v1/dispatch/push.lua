-- push: puts words at the end of a list that the next pop takes from. They are tokens that a worker popped and that are
-- still valid, or the words that wake a draining worker. If a token is pushed twice, that costs one stale acquire.
-- Says: = length
-- @flags allow-oom
local list = KEYS[1]  -- {queue}:<priority>  list  tokens; or {queue}:wake:<host:port>  list  words
local ttl = tonumber(ARGV[1])  -- ms after which the whole list expires; 0 = never
local words = 2  -- ARGV[2...]  at most 1,000

if not ttl or ttl < 0 or #ARGV < words or #ARGV - words + 1 > 1000 then
  return redis.error_reply("BADARGUMENT push wants a number for ttl, and 1 to 1000 words")
end
local count = redis.call("RPUSH", list, unpack(ARGV, words))
if ttl > 0 then
  redis.call("PEXPIRE", list, ttl)
end
return count
