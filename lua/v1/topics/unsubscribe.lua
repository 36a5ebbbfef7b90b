-- unsubscribe: removes a subscriber and all that waits for it. Messages of other subscribers stay.
-- Says: = is_removed
-- @flags allow-oom
local stream = KEYS[1]  -- topic:{<name>}  stream  messages
local conf = KEYS[2]  -- topic:{<name>}:conf  hash  of the subscriber: read, missed, cursor and seen
local subscriber = ARGV[1]  -- its name

if redis.call("HDEL", conf, "read:" .. subscriber) == 0 then
  return 0
end
redis.call("HDEL", conf, "missed:" .. subscriber, "cursor:" .. subscriber, "seen:" .. subscriber, "back:" .. subscriber)
redis.call("HINCRBY", conf, "subscribers", -1)
if redis.call("EXISTS", stream) == 1 then
  redis.call("XGROUP", "DESTROY", stream, subscriber)
end
return 1
