-- restart_forward: begins another epoch, because the two servers do not agree about the present one. What is in flight keeps its
-- place and is sent again. A repeat finds another epoch and changes nothing.
-- Says: = is_restarted
-- @flags allow-oom
local state = KEYS[1]  -- {<list>}:forward  hash  epoch, sequence, chain, owner, until, earlier, restarts, restarted, reason
local now = ARGV[1]  -- ms, "" = server time
local epoch = ARGV[2]  -- that ends
local fresh = ARGV[3]  -- that begins
local reason = ARGV[4]  -- gap | diverged, for people
-- @include lib/core.lua

if epoch == "" or fresh == "" or epoch == fresh or (reason ~= "gap" and reason ~= "diverged") then
  return redis.error_reply("BADARGUMENT restart_forward wants two epochs, and gap or diverged")
end
if redis.call("HGET", state, "epoch") ~= epoch then
  return 0
end
redis.call("HINCRBY", state, "restarts", 1)
redis.call("HINCRBY", state, "earlier", redis.call("HGET", state, "sequence") or 0)
redis.call("HSET", state, "epoch", fresh, "sequence", 0, "chain", "", "restarted", string.format("%.0f", now_ms(now)),
  "reason", reason)
return 1
