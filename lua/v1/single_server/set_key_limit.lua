-- set_key_limit: sets the limit of a key until it is taken back, or takes it back. Tokens that wait are called as far as there
-- is room, up to 100 of them. Leases above a lower limit are not taken back.
-- Says: ok former | more former
--   former = the limit before, "" = the key was not in use; more: there is room for others, so the call must be repeated
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  ticket, shards
local turns = KEYS[2]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[3]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local limits = KEYS[4]  -- {queue}:limits  hash  key -> its limit
local key = KEYS[5]  -- {queue}:key:<name>  zset  what holds and what waits for it, see lib/limit_keys.lua
local name = ARGV[1]  -- of the key
local limit = tonumber(ARGV[2])  -- 1..10000; 0 = as the requests say that name it
-- @include lib/limit_keys.lua

if name == "" or not limit or limit < 0 or limit > 10000 or limit % 1 ~= 0 then
  return redis.error_reply("BADLIMIT a key, and a whole number from 0 to 10000 are expected")
end
local home = string.match(conf, "^[^}]*}")
local former = limit_in_force(home, name)
if limit > 0 then
  redis.call("HSET", limits, name, string.format("%d set", limit))
elseif former then
  redis.call("HSET", limits, name, former)
end
if limit > 0 and redis.call("EXISTS", key) == 0 then
  return {"ok", former or ""}
end
local found = each_key(home, name .. "=1")[1]
call_next(home, found)
local token, rank = first_in_line(found)
local has_more = token and (rank == -1 or may_call(home, found, token, rank))
return {has_more and "more" or "ok", former or ""}
