-- complete: the holder settles what it worked on. Counts, results and dead letters follow only what
-- XACK acknowledged (or a few's whole). With keep the lease goes on; without it the permit returns and
-- what the lease still owes goes to `retry`, due now, uncharged: each to come alone, or all together.
-- Says: ok left tokens | already tokens | lost | ended summary | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local k = ARGV[2]  -- permit
local fence = ARGV[3]  -- drawn at acquire
local op = ARGV[4]  -- hex; of the acquire
local keep = ARGV[5]  -- "1" = a partial completion, "u" = what is left over was never begun, "0" = it may have been
local done = tonumber(ARGV[6])  -- how many results follow
local verdicts = 7  -- ARGV[7...]  done ids, then done (head, body) pairs, then (id, verdict, delay ms, head, error) each
-- @include lib/now_ms.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/few.lua
-- @include lib/mint.lua
-- @include lib/finish.lua
-- @include lib/orphan.lua
-- @include lib/bury.lua
-- @include lib/settle.lua
-- @include lib/whole.lua
-- @include lib/verdicts.lua

local others = done and verdicts + 3 * done
if not done or done < 0 or done > 1000 or #ARGV < others - 1 or (#ARGV - others + 1) % 5 ~= 0 then
  return redis.error_reply("BADVERDICT complete wants ids, (head, body) pairs and fives of id, verdict, delay, head, error")
end
for i = others, #ARGV, 5 do
  local verdict = ARGV[i + 1]
  if not (REASONS[verdict] or verdict == "release") or not tonumber(ARGV[i + 2]) then
    return redis.error_reply("BADVERDICT retry, timeout, dead or release and a delay in ms are expected")
  end
end
local state, over = living_state()
if over then
  return over
end
now = now_ms(now)
local permit = read_permit(k)
if permit.fence ~= fence or permit.op ~= op then
  if redis.call("HGET", permits, "last" .. k) == fence then
    return {"already", queued_tokens(now)}
  end
  return {"lost"}
end
local consumer = consumer_of(permit, k)
local settled
if is_whole(permit, verdicts, done) then
  local settle = state.few == 2 and finish_few or acknowledge
  settled = settle(state, permit.worker, verdicts, done)
else
  pour(state)
  local owed = owed_by(consumer)
  settled = settle_done(state, permit.worker, owed, verdicts, done)
  settled = settled + settle_others(state, now, permit.worker, owed, others)
end
permit.owed = permit.owed - settled
permit.first, permit.last = "", ""
if keep == "1" then
  write_held(k, permit)
  redis.call("ZADD", leases, "XX", now + state.lease_ms, k)
elseif state.left ~= 0 then  -- else finish deletes all of this at once
  if permit.owed > 0 then
    give_back(consumer, now, keep == "u")
  end
  redis.call("HSET", permits, "last" .. k, fence)  -- a repeat reads "already"; who was reaped reads "lost"
  forget(consumer)
  release_permit(state, k)
end
return finish_or_mint(state, now, "ok", left_of(state) - state.open)
