-- How a lease is settled, from the arguments of its script; see complete.
-- @include lib/core/state.lua
-- @include lib/permits/permits.lua
-- @include lib/entries/inline_bodies.lua
-- @include lib/permits/mint.lua
-- @include lib/lease/finish.lua
-- @include lib/entries/retry_queue.lua
-- @include lib/entries/dead_letter.lua
-- @include lib/lease/settle_results.lua
-- @include lib/lease/settles_all.lua
-- @include lib/lease/settle_verdicts.lua
local others = done and verdicts + 3 * done  -- where the verdicts of what was not done begin

local function complete_error()
  if not done or done < 0 or done > 1000 or #ARGV < others - 1 or (#ARGV - others + 1) % 5 ~= 0 then
    return redis.error_reply("BADVERDICT complete wants ids, (head, body) pairs and fives of id, verdict, delay, head, error")
  end
  for i = others, #ARGV, 5 do
    local verdict = ARGV[i + 1]
    if not (REASONS[verdict] or verdict == "release") or not tonumber(ARGV[i + 2]) then
      return redis.error_reply("BADVERDICT retry, timeout, dead or release and a delay in ms are expected")
    end
  end
  return nil
end

-- `permit`: what stands at k.
local function complete(state, now, permit)
  if permit.fence ~= fence or permit.op ~= op then
    if redis.call("HGET", permits, "last" .. k) == fence then
      return {"already", queued_tokens(now)}
    end
    return {"lost"}
  end
  local consumer = consumer_of(permit, k)
  local is_all, settled = is_whole(permit, verdicts, done), nil
  if is_all and state.few == 2 then
    settled = finish_few(state, permit.worker, verdicts, done)
  else
    pour(state)
    permit.first, permit.last = "", ""
    write_held(k, permit, keep ~= "1")  -- from now on a repeat settles what is still pending, one by one
  end
  if is_all then
    settled = settled or acknowledge(state, permit.worker, verdicts, done)
  else
    local owed = owed_by(consumer)
    settled = settle_done(state, permit.worker, owed, verdicts, done)
    settled = settled + settle_others(state, now, permit.worker, owed, others)
  end
  permit.owed = permit.owed - settled
  if keep == "1" then
    write_held(k, permit)
    redis.call("ZADD", leases, "XX", now + state.lease_ms, k)
  elseif state.left ~= 0 then  -- else finish deletes all of this at once
    if permit.owed > 0 then
      give_back(consumer, now, keep == "u")
    end
    forget(consumer)
    release_permit(state, k)
  end
  return finish_or_mint(state, now, "ok", left_of(state) - state.open)
end
