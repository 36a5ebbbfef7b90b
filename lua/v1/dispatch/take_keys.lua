-- take_keys: takes all keys of each token, or none, for the acquire with its op, where the keys are in another slot than the request.
-- A token that finds a key full waits for it at its former place. Idempotent by op. If a late copy takes keys for an acquire
-- that is over, a look (look_at_keys) finds that.
-- Says: = taken
--   taken = for each token 1, or 0 if it waits
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  ticket
local turns = KEYS[2]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[3]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local now = ARGV[1]  -- ms, "" = server time
local look_ms = tonumber(ARGV[2])  -- ms until the first look
local rows = 3  -- ARGV[3...]  lane, token and op, each; at most 300 tokens
-- @include lib/core.lua
-- @include lib/apart_keys.lua

local count = #ARGV - rows + 1
if not look_ms or count == 0 or count % 3 ~= 0 or count > 900 then
  return redis.error_reply("BADARGUMENT take_keys wants a number of ms, and lane, token and op, 1 to 300 times")
end
for i = rows, #ARGV, 3 do
  if not string.find(ARGV[i], "^%d?%d$") or not string.find(ARGV[i + 1], "^[^#|]+#%d+%.%d+[^%%]*%%%%[^=%%]+=%d") or not string.find(ARGV[i + 2], "^%x+$") then
    return redis.error_reply("BADTOKENS take_keys wants lanes from 0 to 99, tokens whose keys are apart, and ops of hex digits")
  end
end
local home, look = string.match(conf, "^[^}]*}"), now_ms(now) + look_ms
local taken = {}
for i = rows, #ARGV, 3 do
  taken[#taken + 1] = take_apart(home, ARGV[i + 1], tonumber(ARGV[i]), ARGV[i + 2], look) and 1 or 0
end
return taken
