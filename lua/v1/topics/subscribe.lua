-- subscribe: adds a subscriber to a topic. It gets every message from now on, or also those that the topic still has. A subscriber
-- that is there keeps its place.
-- Says: ok | already | full | leaving
--   full: the topic has as many subscribers as it may have; leaving: a removal of this name must end first, see unsubscribe
-- @flags grows
local stream = KEYS[1]  -- topic:{<name>}  stream  messages
local conf = KEYS[2]  -- topic:{<name>}:conf  hash  read:<subscriber> -> number of the last message that it read; leaving
local subscriber = ARGV[1]  -- its name
local start = ARGV[2]  -- first | new
local most = tonumber(ARGV[3])  -- subscribers

if subscriber == "" or (start ~= "first" and start ~= "new") or not most or most < 1 then
  return redis.error_reply("BADARGUMENT subscribe wants a name, first or new, and a number")
end
if redis.call("HEXISTS", conf, "read:" .. subscriber) == 1 then
  return {"already"}
end
if redis.call("HEXISTS", conf, "leaving:" .. subscriber) == 1 then
  return {"leaving"}
end
local count = tonumber(redis.call("HGET", conf, "subscribers") or 0)
if count >= most then
  return {"full"}
end
local published = tonumber(redis.call("HGET", conf, "published") or 0)
local oldest = redis.call("XRANGE", stream, "-", "+", "COUNT", 1)[1]
local read = published
if start == "first" and oldest then
  read = tonumber(string.match(oldest[1], "%-(%d+)$")) - 1
end
redis.call("XGROUP", "CREATE", stream, subscriber, start == "first" and "0" or "$", "MKSTREAM")
redis.call("HSET", conf, "read:" .. subscriber, read, "subscribers", count + 1)
return {"ok"}
