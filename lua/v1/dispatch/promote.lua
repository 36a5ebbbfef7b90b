-- promote: due tokens go to their lanes, a bounded batch. Says: how many, due of the next (0 = none)
-- @flags allow-oom
local delayed = KEYS[1]  -- {queue}:delayed  zset  <priority>|<token> -> due, ms
local lanes = 2  -- KEYS[2...]  {queue}:0 ... {queue}:99  list  tokens, by priority
local now = ARGV[1]  -- ms, "" = server time
local most = tonumber(ARGV[2])  -- tokens a call, 1..1000
-- @include lib/now_ms.lua

if not most or most < 1 or most > 1000 or #KEYS ~= 101 then
  return redis.error_reply("BADBATCH promote wants 100 lanes and a batch of 1 to 1000")
end
local due = redis.call("ZRANGEBYSCORE", delayed, "-inf", now_ms(now), "LIMIT", 0, most)
for _, member in ipairs(due) do
  local lane, token = string.match(member, "^(%d+)|(.*)$")
  redis.call("ZREM", delayed, member)
  redis.call("LPUSH", KEYS[lanes + tonumber(lane)], token)
end
local first = redis.call("ZRANGE", delayed, 0, 0, "WITHSCORES")
return {#due, tonumber(first[2]) or 0}
