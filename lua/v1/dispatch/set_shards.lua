-- set_shards: sets the shards for the tokens of requests that are submitted from now on. Former shards are `left`:
-- workers serve them until every request has been moved; then they are forgotten.
-- Says: ok shards left since | keyed
--   since = when the shards were set last, ms, 0 = never; keyed: requests of the queue have named keys, whose tokens are in no shard
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  shards, left, shards_since, has_keys
local now = ARGV[1]  -- ms, "" = server time
local shards = ARGV[2]  -- numbers with commas, "" = the queue's own lanes, "=" = as they are
local since = ARGV[3]  -- "", or when the shards were set: if they were not set again since, those that are `left` are forgotten
-- @include lib/core.lua
-- @include lib/create.lua

if shards ~= "=" and not are_shards(shards) then
  return redis.error_reply("BADSHARDS numbers with commas between them are expected")
end
local known = redis.call("HMGET", conf, "shards", "left", "shards_since", "has_keys")
local present, left, set = known[1] or "", known[2] or "", known[3] or "0"
if known[4] and shards ~= "=" and shards ~= "" then
  return {"keyed"}
end
if since == set then
  redis.call("HDEL", conf, "left")
  left = ""
end
if shards == "=" or shards == present then
  return {"ok", present, left, set}
end
local kept, used = {}, {}
for shard in string.gmatch(shards == "" and "0" or shards, "%d+") do
  used[shard] = true
end
for shard in string.gmatch((present == "" and "0" or present) .. "," .. left, "%d+") do
  if not used[shard] then
    used[shard] = true
    kept[#kept + 1] = shard
  end
end
left, set = table.concat(kept, ","), string.format("%d", now_ms(now))
redis.call("HSET", conf, "shards", shards, "left", left, "shards_since", set)
return {"ok", shards, left, set}
