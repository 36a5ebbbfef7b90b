-- unsubscribe: removes a subscriber, and at most 1000 of the messages that it has not acknowledged, because all would hold Redis for
-- long. From the first call on there is no such subscriber. Messages of other subscribers stay.
-- Says: removed | more | gone
--   more: messages are left, so the call must be repeated; gone: there is no such subscriber
-- @flags allow-oom
local stream = KEYS[1]  -- topic:{<name>}  stream  messages
local conf = KEYS[2]  -- topic:{<name>}:conf  hash  of the subscriber: read, missed, cursor, seen and back; leaving until the last call
local subscriber = ARGV[1]  -- its name
local TOGETHER = 1000

local leaving = "leaving:" .. subscriber
if redis.call("HDEL", conf, "read:" .. subscriber) == 1 then
  redis.call("HDEL", conf, "missed:" .. subscriber, "cursor:" .. subscriber, "seen:" .. subscriber, "back:" .. subscriber)
  redis.call("HINCRBY", conf, "subscribers", -1)
elseif redis.call("HEXISTS", conf, leaving) == 0 then
  return {"gone"}
end
if redis.call("EXISTS", stream) == 1 then
  local pending = redis.pcall("XPENDING", stream, subscriber, "-", "+", TOGETHER)  -- an error if its group is gone
  local ids = {}
  for i = 1, #pending do
    ids[i] = pending[i][1]
  end
  if #ids > 0 then
    redis.call("XACK", stream, subscriber, unpack(ids))
  end
  if #ids == TOGETHER then
    redis.call("HSET", conf, leaving, 1)
    return {"more"}
  end
  redis.call("XGROUP", "DESTROY", stream, subscriber)
end
redis.call("HDEL", conf, leaving)
return {"removed"}
