-- look_at_keys: returns what keys hold for requests in other slots and should be looked at, and what was called. So the caller can
-- ask the requests about it. An entry that is returned is looked at again later. Calls what waits where there is room.
-- Says: = entries
--   entries = key and entry, each
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  ticket
local turns = KEYS[2]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[3]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local limits = KEYS[4]  -- {queue}:limits  hash  key -> its limit
local now = ARGV[1]  -- ms, "" = server time
local look_ms = tonumber(ARGV[2])  -- ms until the next look
local within = ARGV[3]  -- "1" = all that is held is looked at now, "" = what is due
local wanted = 4  -- ARGV[4...]  keys, at most 100
-- @include lib/core.lua
-- @include lib/limit_keys.lua
local MOST = 10000  -- entries of one kind in a key

if not look_ms or #ARGV < wanted or #ARGV - wanted + 1 > 100 then
  return redis.error_reply("BADARGUMENT look_at_keys wants a number of ms, and 1 to 100 keys")
end
now = now_ms(now)
local home, found = string.match(conf, "^[^}]*}"), {}
for i = wanted, #ARGV do
  local key = each_key(home, ARGV[i] .. "=1")[1]
  local least, latest = within == "1" and "-inf" or score_text(-now), score_text(-now - look_ms)
  for _, range in ipairs({{"-inf", "(" .. latest}, {least, "(0"}}) do  -- the first: from before the clock went back
    for _, entry in ipairs(redis.call("ZRANGEBYSCORE", key.set, range[1], range[2], "LIMIT", 0, MOST)) do
      redis.call("ZADD", key.set, "XX", latest, entry)
      found[#found + 1], found[#found + 2] = key.name, entry
    end
  end
  for _, entry in ipairs(redis.call("ZRANGEBYSCORE", key.set, 0, below(LINE - 1), "LIMIT", 0, MOST)) do
    found[#found + 1], found[#found + 2] = key.name, entry
  end
  call_next(home, key)
end
return found
