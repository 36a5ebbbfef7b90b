-- add_turns: adds tokens of requests that name a tenant, before their placeholders go to the lane. If a token is added
-- twice, that costs one stale acquire.
-- Says: = tokens_added
-- @flags allow-oom
local turns = KEYS[1]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[2]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local lane = tonumber(ARGV[1])  -- 0..99
local tokens = 2  -- ARGV[2...]  <id>#<k>.<g>@<share>:<tenant>, 1 to 1,000
-- @include lib/turns.lua

if not lane or lane < 0 or lane > 99 or lane % 1 ~= 0 or #ARGV < tokens or #ARGV >= 1000 + tokens then
  return redis.error_reply("BADTOKENS add_turns wants a lane from 0 to 99 and 1 to 1000 tokens")
end
for i = tokens, #ARGV do
  if not string.find(ARGV[i], "^[^#|]+#%d+%.%d+@[1-9]%d*:[^|]+$") then
    return redis.error_reply("BADTOKENS add_turns wants tokens with a share and a tenant")
  end
end
for i = tokens, #ARGV do
  add_turn(string.format("%d", lane), ARGV[i])
end
return #ARGV - tokens + 1
