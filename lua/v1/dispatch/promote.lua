-- promote: moves a bounded number of due tokens to their lanes. A token leaves `delayed` only after its lane has
-- accepted it; a token that its lane refuses delays no other.
-- Says: (moved next_due)
--   next_due = 0: no token is left
-- @flags allow-oom
local delayed = KEYS[1]  -- {queue}:delayed  zset  <priority>|<token> -> due, ms
local turns = KEYS[2]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[3]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local lanes = 4  -- KEYS[4...]  {queue}:0 ... {queue}:99  list  tokens, by priority
local now = ARGV[1]  -- ms, "" = server time
local most = tonumber(ARGV[2])  -- tokens a call, 1..1000
-- @include lib/core.lua
-- @include lib/limit_keys.lua

if not most or most < 1 or most > 1000 or #KEYS ~= 103 then
  return redis.error_reply("BADBATCH promote wants 100 lanes and a batch of 1 to 1000")
end
local due = redis.call("ZRANGEBYSCORE", delayed, "-inf", now_ms(now), "LIMIT", 0, most)
local refused
for _, member in ipairs(due) do
  local lane, token = string.match(member, "^(%d+)|(.*)$")
  local pushed
  if string.find(token, "%", 1, true) then
    local is_done, problem = pcall(place_new, string.match(delayed, "^[^}]*}"), tonumber(lane), token)
    if not is_done then
      pushed = type(problem) == "table" and problem or redis.error_reply(problem)  -- text before Redis 7
    end
  else
    pushed = redis.pcall("LPUSH", KEYS[lanes + tonumber(lane)], word_for(token))
  end
  if type(pushed) == "table" then
    refused = pushed
  else
    if pushed and word_for(token) == PLACEHOLDER then
      add_turn(lane, token)
    end
    redis.call("ZREM", delayed, member)
  end
end
if refused then
  return refused
end
local first = redis.call("ZRANGE", delayed, 0, 0, "WITHSCORES")
return {#due, tonumber(first[2]) or 0}
