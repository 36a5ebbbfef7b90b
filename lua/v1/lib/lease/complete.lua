-- How a lease is settled; see complete.
-- @include lib/core/state.lua
-- @include lib/permits/permits.lua
-- @include lib/entries/inline_bodies.lua
-- @include lib/permits/mint.lua
-- @include lib/core/finish.lua
-- @include lib/entries/retry_queue.lua
-- @include lib/entries/dead_letter.lua
-- @include lib/lease/settle_results.lua
-- @include lib/lease/settles_all.lua
-- @include lib/lease/settle_verdicts.lua

-- Returns what the holder did, or nil and the refusal. args[first] starts `done` ids, then `done`
-- (head, body) pairs. args[others] starts the verdicts, which end at args[last].
local function read_work(args, first, done, last)
  local others = done and first + 3 * done
  if not done or done < 0 or done > 1000 or last < others - 1 or (last - others + 1) % 5 ~= 0 then
    return nil, redis.error_reply("BADVERDICT complete wants ids, (head, body) pairs and fives of id, verdict, delay, head, error")
  end
  for i = others, last, 5 do
    local verdict = args[i + 1]
    if not (REASONS[verdict] or verdict == "release" or verdict == "unbegun") or not tonumber(args[i + 2]) then
      return nil, redis.error_reply("BADVERDICT retry, timeout, dead, release or unbegun and a delay in ms are expected")
    end
  end
  return {args = args, first = first, done = done, others = others, last = last}
end

-- Settles one by one. Returns how many sub-requests were settled.
-- @rare
local function settle_each(state, now, worker, consumer, work)
  local owed = owed_by(consumer)
  local settled = settle_done(state, worker, owed, work)
  return settled + settle_others(state, now, worker, owed, work)
end

-- `lease`: k, fence and op of the holder, and keep, as complete takes them. `permit`: what stands at k.
local function complete(state, now, permit, lease, work)
  local k, keep = lease.k, lease.keep
  if permit.fence ~= lease.fence or permit.op ~= lease.op then
    if redis.call("HGET", permits, "last" .. k) == lease.fence then
      return {"already", queued_tokens(state, now)}
    end
    return {"lost"}
  end
  local consumer = consumer_of(permit, k)
  local is_all, settled = is_whole(permit, work), nil
  if is_all and state.few == 2 then
    settled = finish_few(state, permit.worker, work)
  else
    pour(state)
    permit.first, permit.last = "", ""
    write_held(k, permit, keep ~= "1")  -- from now on a repeat settles what is still pending, one by one
  end
  if is_all then
    settled = settled or acknowledge(state, permit.worker, work)
  else
    settled = settle_each(state, now, permit.worker, consumer, work)
  end
  permit.owed = permit.owed - settled
  if keep == "1" then
    write_held(k, permit)
    redis.call("ZADD", leases, "XX", now + state.lease_ms, k)
  elseif state.left ~= 0 then  -- else finish deletes all of this
    if permit.owed > 0 then
      give_back(consumer, now, keep == "u")
    end
    forget(consumer)
    release_permit(state, k)
  end
  return finish_or_mint(state, now, "ok", left_of(state) - state.open)
end
