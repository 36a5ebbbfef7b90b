-- resume_key: lets the requests behind the first stop of an order key go on: a request that had it ended with dead sub-requests.
-- Says: = resumed
--   resumed = the request that stopped it, "" = nothing had stopped it
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  ticket
local turns = KEYS[2]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[3]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local limits = KEYS[4]  -- {queue}:limits  hash  key -> its limit
local key = KEYS[5]  -- {queue}:key:!<name>  zset  what holds and what waits for it, see lib/limit_keys.lua
local name = ARGV[1]  -- of the order key, with its !
-- @include lib/limit_keys.lua

if not string.find(name, "^![%w_.:-]+$") then
  return redis.error_reply("BADARGUMENT resume_key wants an order key")
end
local first = redis.call("ZRANGEBYSCORE", key, score_text(STOPS), below(LINE - 1), "LIMIT", 0, 1)[1]
if not first then
  return ""
end
redis.call("ZREM", key, first)
local home = string.match(conf, "^[^}]*}")
call_next(home, each_key(home, name .. "=1")[1])
return (string.gsub(first, "^!%d+:", ""))
