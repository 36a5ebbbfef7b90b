-- take_messages: delivers messages to a consumer of a subscriber: first those that were delivered and not acknowledged in time, then
-- new ones. Messages that the retention deleted before they were acknowledged are counted as missed. Redis notes when a message
-- was delivered. If the clock went back, it would count such a message as delivered for too long: its wait begins anew.
-- Says: ok last again fresh | gone
--   last = the id of the newest message of the topic; again, fresh = (id, message) pairs
-- @flags allow-oom
local stream = KEYS[1]  -- topic:{<name>}  stream  messages
local conf = KEYS[2]  -- topic:{<name>}:conf  hash  of each subscriber: read, missed, cursor, seen and back
local now = ARGV[1]  -- ms, "" = server time
local subscriber = ARGV[2]  -- its name
local most = tonumber(ARGV[3])  -- messages, 1..1000
local redeliver = tonumber(ARGV[4])  -- ms after which a message that is not acknowledged is delivered again
-- @include lib/core.lua
-- @include lib/ahead.lua
local TOGETHER = 1000
local CONSUMER = "all"  -- any consumer acknowledges what another one was delivered

if subscriber == "" or not most or most < 1 or most > 1000 or not redeliver or redeliver < 0 then
  return redis.error_reply("BADCOUNT take_messages wants a subscriber, 1 to 1000 messages, and ms")
end
local read = tonumber(redis.call("HGET", conf, "read:" .. subscriber))
if not read or redis.call("EXISTS", stream) == 0 then
  return {"gone"}
end

-- Returns (id, message) pairs of entries, flat.
local function pairs_of(entries)
  local found = {}
  for _, entry in ipairs(entries) do
    found[#found + 1] = entry[1]
    found[#found + 1] = entry[2][2]
  end
  return found
end

now = now_ms(now)
local places = redis.call("HMGET", conf, "cursor:" .. subscriber, "seen:" .. subscriber, "back:" .. subscriber)
local missed = 0
-- `back` is how far the waits have begun anew.
local back = is_void(tonumber(places[2] or 0), now, 0) and "0-0" or places[3]
if back then
  local renewed = redis.call("XAUTOCLAIM", stream, subscriber, CONSUMER, 0, back, "COUNT", TOGETHER, "JUSTID")
  missed = #(renewed[3] or {})
  if renewed[1] == "0-0" then
    redis.call("HDEL", conf, "back:" .. subscriber)
  else
    redis.call("HSET", conf, "back:" .. subscriber, renewed[1])
  end
end
local claimed = redis.call("XAUTOCLAIM", stream, subscriber, CONSUMER, redeliver, places[1] or "0-0", "COUNT", most)
missed = missed + #(claimed[3] or {})
local fresh = {}
if #claimed[2] < most then
  local streams = redis.call("XREADGROUP", "GROUP", subscriber, CONSUMER, "COUNT", most - #claimed[2], "STREAMS", stream, ">")
  fresh = streams and streams[1][2] or {}
end
if #fresh > 0 then
  local first = tonumber(string.match(fresh[1][1], "%-(%d+)$"))
  missed = missed + first - 1 - read
  read = tonumber(string.match(fresh[#fresh][1], "%-(%d+)$"))
  redis.call("HSET", conf, "read:" .. subscriber, string.format("%.0f", read))
end
if missed > 0 then
  redis.call("HINCRBY", conf, "missed:" .. subscriber, missed)
end
redis.call("HSET", conf, "cursor:" .. subscriber, claimed[1], "seen:" .. subscriber, string.format("%.0f", now))
local newest = redis.call("HMGET", conf, "last_ms", "published")
return {"ok", (newest[1] or 0) .. "-" .. (newest[2] or 0), pairs_of(claimed[2]), pairs_of(fresh)}
