-- insert_tokens: dispatches the tokens that mint returned, for one request or many. Never touches `active`. If a token
-- is inserted twice, that costs one stale acquire.
-- Says: = tokens_inserted
-- @flags allow-oom
local delayed = KEYS[1]  -- {queue}:delayed  zset  <priority>|<token> -> due, ms
local lanes = 2  -- KEYS[2...]  {queue}:<priority>  list  tokens; one key for each part below
local now = ARGV[1]  -- ms, "" = server time
local tokens = 2  -- ARGV[2...]  parts: lane, how many now, how many later, those now, then token and ms of those later
-- @include lib/core.lua
local COUNT = "^%d%d?%d?$"  -- unpack stays below 1,000

-- Returns where each part begins and what is in it, or nil if ARGV does not consist of such parts.
local function parts()
  local found, at = {}, tokens
  for i = 0, #KEYS - lanes do
    local awake = string.match(ARGV[at + 1] or "", COUNT)
    local later = string.match(ARGV[at + 2] or "", COUNT)
    if not awake or not later then
      return nil
    end
    local part = {lane = ARGV[at], first = at + 3, last = at + 2 + awake, later = tonumber(later)}
    found[i] = part
    at = part.last + 1
    for _ = 1, part.later do
      if not tonumber(ARGV[at + 1]) then
        return nil
      end
      at = at + 2
    end
  end
  return at == #ARGV + 1 and found
end

local found = parts()
if not found then
  return redis.error_reply("BADTOKENS for each lane key its lane, two counts and so many tokens are expected")
end
local count, clock = 0, nil
for i = 0, #KEYS - lanes do
  local part = found[i]
  if part.first <= part.last then
    redis.call("LPUSH", KEYS[lanes + i], unpack(ARGV, part.first, part.last))
  end
  for at = part.last + 1, part.last + 2 * part.later, 2 do
    clock = clock or now_ms(now)
    redis.call("ZADD", delayed, clock + tonumber(ARGV[at + 1]), part.lane .. "|" .. ARGV[at])
  end
  count = count + part.last - part.first + 1 + part.later
end
return count
