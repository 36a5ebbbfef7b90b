-- publish: adds messages to a topic, all or none, and deletes those that are past its retention. The id of a message is its time and
-- its number: <ms>-<number>. A repeat with the same marker adds nothing and has the same reply.
-- Says: (first last)
--   the numbers of the first and the last of these messages
-- @flags grows
local stream = KEYS[1]  -- topic:{<name>}  stream  messages, field m
local conf = KEYS[2]  -- topic:{<name>}:conf  hash  published, last_ms, retain_ms, retain_count; of each subscriber what it has read
local marker = KEYS[3]  -- topic:{<name>}:op:<op>  string with a TTL  the reply
local now = ARGV[1]  -- ms, "" = server time
local ttl = tonumber(ARGV[2])  -- ms until the marker is deleted
local retain_ms = tonumber(ARGV[3])  -- of a topic without a retention of its own
local retain_count = tonumber(ARGV[4])  -- likewise
local messages = 5  -- ARGV[5...]  at most 1000
-- @include lib/core.lua
local MOST = 1000

local count = #ARGV - messages + 1
if not ttl or ttl < 1 or not retain_ms or retain_ms < 1 or not retain_count or retain_count < 1 or count < 1 or count > MOST then
  return redis.error_reply("BADARGUMENT publish wants ms, a retention, and 1 to " .. MOST .. " messages")
end
local known = redis.call("GET", marker)
if known then
  local first, last = string.match(known, "^(%d+) (%d+)$")
  return {tonumber(first), tonumber(last)}
end
local stored = redis.call("HMGET", conf, "published", "last_ms", "retain_ms", "retain_count")
local published = tonumber(stored[1] or 0)
local clock = math.max(now_ms(now), tonumber(stored[2] or 0))  -- ids must grow, also if the clock was set back
for i = 1, count do
  redis.call("XADD", stream, string.format("%.0f-%.0f", clock, published + i), "m", ARGV[messages + i - 1])
end
redis.call("HSET", conf, "published", published + count, "last_ms", clock)
redis.call("XTRIM", stream, "MINID", string.format("%.0f", clock - (tonumber(stored[3]) or retain_ms)))
redis.call("XTRIM", stream, "MAXLEN", tonumber(stored[4]) or retain_count)
redis.call("SET", marker, string.format("%.0f %.0f", published + 1, published + count), "PX", ttl)
return {published + 1, published + count}
