-- place_tokens: dispatches tokens that name keys: each goes to its lane if all its keys have room, else it waits for one of them.
-- Also removes from keys what the scripts of requests in other slots have given up, see lib/request_limits.lua.
-- If a token is placed twice, that costs one stale acquire.
-- Says: = tokens_placed
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  ticket
local turns = KEYS[2]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[3]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local rows = 1  -- ARGV[1...]  lane and token, each; or - and what leaves its keys; at most 450 rows
-- @include lib/apart_keys.lua

if #ARGV == 0 or #ARGV % 2 ~= 0 or #ARGV > 900 then
  return redis.error_reply("BADTOKENS place_tokens wants a lane and a token, 1 to 450 times")
end
for i = rows, #ARGV, 2 do
  if not string.find(ARGV[i], "^%d?%d$") and ARGV[i] ~= "-" or not string.find(ARGV[i + 1], "^[^#|]+#%d+%.%d+[^%%]*%%%%?[^=%%]+=%d") then
    return redis.error_reply("BADTOKENS place_tokens wants lanes from 0 to 99 or -, and tokens with keys")
  end
end
local home, placed = string.match(conf, "^[^}]*}"), 0
for i = rows, #ARGV, 2 do
  if ARGV[i] == "-" then
    leave_apart(home, ARGV[i + 1])
  else
    place_new(home, tonumber(ARGV[i]), ARGV[i + 1])
    placed = placed + 1
  end
end
return placed
