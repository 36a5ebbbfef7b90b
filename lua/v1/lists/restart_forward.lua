-- restart_forward: begins another epoch, because the two servers do not agree about the present one. What is in flight keeps its
-- place and is sent again. A repeat finds another epoch and changes nothing.
-- Says: = is_restarted
-- @flags allow-oom
local state = KEYS[1]  -- {<list>}:forward  hash  epoch, sequence, chain, owner, until
local epoch = ARGV[1]  -- that ends
local fresh = ARGV[2]  -- that begins

if epoch == "" or fresh == "" or epoch == fresh then
  return redis.error_reply("BADARGUMENT restart_forward wants two epochs")
end
if redis.call("HGET", state, "epoch") ~= epoch then
  return 0
end
redis.call("HSET", state, "epoch", fresh, "sequence", 0, "chain", "")
return 1
