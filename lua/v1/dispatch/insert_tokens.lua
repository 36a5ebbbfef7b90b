-- insert_tokens: dispatches what mint returned. Never touches `active`. A token twice costs one
-- stale acquire. Says: how many
-- @flags allow-oom
local delayed = KEYS[1]  -- {queue}:delayed  zset  <priority>|<token> -> due, ms
local lanes = 2  -- KEYS[2...]  {queue}:<priority>  list  tokens; one key for each token below
local now = ARGV[1]  -- ms, "" = server time
local tokens = 2  -- ARGV[2...]  lane, token, delay ms
-- @include lib/now_ms.lua

local count = #KEYS - lanes + 1
if #ARGV - tokens + 1 ~= 3 * count then
  return redis.error_reply("BADTOKENS one lane key and three arguments for each token are expected")
end
for i = tokens, #ARGV, 3 do
  if not tonumber(ARGV[i + 2]) then
    return redis.error_reply("BADTOKENS a delay in ms is expected")
  end
end
local clock = nil
for i = 0, count - 1 do
  local lane, token, delay = ARGV[tokens + 3 * i], ARGV[tokens + 3 * i + 1], tonumber(ARGV[tokens + 3 * i + 2])
  if delay > 0 then
    clock = clock or now_ms(now)
    redis.call("ZADD", delayed, clock + delay, lane .. "|" .. token)
  else
    redis.call("LPUSH", KEYS[lanes + i], token)
  end
end
return count
