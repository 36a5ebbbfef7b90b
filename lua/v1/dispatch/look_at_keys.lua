-- look_at_keys: returns what keys hold for requests in other slots and should be looked at, and what was called. So the caller can
-- ask the requests about it. What is held and returned is looked at again later, the rest as before. Calls what waits where there is room.
-- Says: = entries
--   entries = key and entry, each; of one key at most 1000 that are due, those first that are due for longest, and 1000 that are called
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  ticket
local turns = KEYS[2]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[3]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local limits = KEYS[4]  -- {queue}:limits  hash  key -> its limit
local now = ARGV[1]  -- ms, "" = server time
local look_ms = tonumber(ARGV[2])  -- ms until the next look
local count = tonumber(ARGV[3])  -- how many keys follow, 1..10
local wanted = 4  -- ARGV[4...]  the keys; then up to 1000 leases or tokens, as <id>#<k>.<g>: they are looked at now, and no others; none = all that is due
-- @include lib/core.lua
-- @include lib/limit_keys.lua
local MOST = 1000  -- entries of one kind that are returned of a key
local SEARCHED = 20000  -- entries of a key among which those wanted are sought: a limit is at most 10000

local leases = #ARGV - wanted + 1 - (count or 0)
if not look_ms or not count or count < 1 or count > 10 or leases < 0 or leases > 1000 then
  return redis.error_reply("BADARGUMENT look_at_keys wants a number of ms, 1 to 10 keys and how many, and at most 1000 leases")
end
now = now_ms(now)
local home, found = string.match(conf, "^[^}]*}"), {}
local latest, only = score_text(-now - look_ms), leases > 0 and {}
for i = wanted + count, #ARGV do
  only[ARGV[i]] = true
end

-- Adds what was asked for among these entries of a key to what is found, and returns it.
local function choose(key, entries)
  local chosen = {}
  for _, entry in ipairs(entries) do
    if not only or only[string.match(entry, "^[^#]*#%d+%.%d+") or ""] then
      chosen[#chosen + 1] = entry
      found[#found + 1], found[#found + 2] = key.name, entry
    end
  end
  return chosen
end

local most = only and SEARCHED or MOST
for i = wanted, wanted + count - 1 do
  local key = each_key(home, ARGV[i] .. "=1")[1]
  -- Of what is held, the first is due for longest; the others are from before the clock went back.
  local held = only and {{"-inf", "(0"}} or {{score_text(-now), "(0"}, {"-inf", "(" .. latest}}
  for _, range in ipairs(held) do
    for _, entry in ipairs(choose(key, redis.call("ZREVRANGEBYSCORE", key.set, range[2], range[1], "LIMIT", 0, most))) do
      redis.call("ZADD", key.set, "XX", latest, entry)
    end
  end
  choose(key, redis.call("ZRANGEBYSCORE", key.set, 0, below(LINE - 1), "LIMIT", 0, most))
  call_next(home, key)
end
return found
