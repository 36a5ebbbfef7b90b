-- take_turns: takes the tokens whose turn it is, for placeholders that were popped from a lane.
-- Says: = tokens
-- @flags allow-oom
local turns = KEYS[1]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[2]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local lane = tonumber(ARGV[1])  -- 0..99
local count = tonumber(ARGV[2])  -- placeholders, 1..1000
-- @include lib/turns.lua

if not lane or lane < 0 or lane > 99 or lane % 1 ~= 0 then
  return redis.error_reply("BADARGUMENT take_turns wants a lane from 0 to 99")
end
if not count or count < 1 or count > 1000 then
  return redis.error_reply("BADARGUMENT take_turns wants a number of placeholders from 1 to 1000")
end
local taken = {}
for _ = 1, count do
  local token = take_turn(string.format("%d", lane))
  if not token then
    break
  end
  taken[#taken + 1] = token
end
return taken
