-- intend: the producer's first step. The ids stand in `active` before the requests exist, so that a
-- producer that dies between the slots leaves a trace. Says: the bound on what waits in the queue (0 =
-- none: the producer need not ask for room) and its shards, then for each id its score, by this slot's
-- clock and always whole, and the one before it as text, because that may have a fraction ("0" = none)
-- @flags grows
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local conf = KEYS[2]  -- {queue}:conf  hash  max_waiting, shards, layout
local now = ARGV[1]  -- ms, "" = server time
local grace = tonumber(ARGV[2])  -- ms until the auditor looks
local above = tonumber(ARGV[3])  -- a score the auditor has given up, or 0
local ids = 4  -- ARGV[4...]  requests, each once
-- @include lib/now_ms.lua
-- @include lib/layout.lua
local MOST = 400

if not grace or not above then
  return redis.error_reply("BADARGUMENT intend wants numbers for grace and above")
end
if #ARGV < ids or #ARGV - ids + 1 > MOST then
  return redis.error_reply("BADARGUMENT intend wants 1 to " .. MOST .. " requests")
end
local known = redis.call("HMGET", conf, "max_waiting", "shards", "layout")
local refused = layout_error(known[3])
if refused then
  return refused
end
local before = redis.call("ZMSCORE", active, unpack(ARGV, ids))
-- Each intent is newer than any the auditor has seen.
local least = math.max(above + 1, now_ms(now) + grace)
local reply = {tonumber(known[1] or 0), known[2] or ""}
local entries = {}
for i, former in ipairs(before) do
  local score = least
  if former then
    score = math.max(math.floor(tonumber(former)) + 1, least)
  end
  entries[2 * i - 1], entries[2 * i] = score, ARGV[ids + i - 1]
  reply[2 * i + 1], reply[2 * i + 2] = score, former or "0"
end
redis.call("ZADD", active, unpack(entries))
return reply
