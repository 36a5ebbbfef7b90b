-- push_shortest: pushes each message to the list that is the shortest at that moment, the first one of those that are equally
-- short. A repeat with the same marker pushes nothing and has the same reply.
-- Says: ok counts | wrongtype at
--   counts = how many messages each list got; at = the index of a key, from 0, that holds no list: nothing was changed
-- @flags grows
local marker = KEYS[1]  -- {<list>}:balanced:<op>  string with a TTL  the counts
local outs = 2  -- KEYS[2...]  lists of a person
local ttl = tonumber(ARGV[1])  -- ms until the marker is deleted
local messages = 2  -- ARGV[2...]  at most 1000, oldest first
-- @include lib/lists.lua
local MOST = 1000

local count = #KEYS - outs + 1
if not ttl or ttl < 1 or #ARGV < messages or #ARGV - messages >= MOST or count < 1 or count > MOST then
  return redis.error_reply("BADARGUMENT push_shortest wants ms, and 1 to " .. MOST .. " lists and messages")
end
local counts, lengths = {}, {}
local known = redis.call("GET", marker)
if known then
  for each in string.gmatch(known, "%d+") do
    counts[#counts + 1] = tonumber(each)
  end
  return {"ok", counts}
end
for i = 0, count - 1 do
  local kind = redis.call("TYPE", KEYS[outs + i]).ok
  if kind ~= "list" and kind ~= "none" then
    return {"wrongtype", i}
  end
  counts[i + 1] = 0
  lengths[i] = redis.call("LLEN", KEYS[outs + i])
end
for i = messages, #ARGV do
  local best = take_shortest(lengths, count)
  redis.call("LPUSH", KEYS[outs + best], ARGV[i])
  counts[best + 1] = counts[best + 1] + 1
end
redis.call("SET", marker, table.concat(counts, ","), "PX", ttl)
return {"ok", counts}
