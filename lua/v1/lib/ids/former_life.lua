-- Finds the request that an id has, and whether a new one may follow it.
-- @include lib/core/state.lua
-- @include lib/core/digest_chain.lua
-- @include lib/ids/distinct.lua
-- @include lib/permits/queue_permit.lua

-- Returns true if a new life may replace the id's last one, which must have ended: it was abandoned; or, with `unique`, it
-- was cancelled or began at least `unique` ms ago. The new life needs higher fences, and a later `born`, because the log
-- distinguishes endings by `born`.
local function may_follow(state, new, now)
  if not is_ended(state) then
    return false
  end
  local window = string.match(new.extras.unique or "", "^%d+")
  if window and (state.state == "cancelled" or now >= state.born + tonumber(window)) then
    return true
  end
  return state.state == "cancelled" and redis.call("HEXISTS", request, "abandoned") == 1
end

-- Returns the state of the id's request if a new life may follow it; nil and the reply of enqueue if none may; nil if the id
-- has no request. A request of another queue is never replaced, whatever became of it, because its results would go, too.
-- @rare
local function former_life(new, now, over)
  local state = load_state()
  if not state then
    return nil
  end
  local digest, home = unpack(redis.call("HMGET", request, "digest", "queue"))
  if home ~= new.queue then
    return nil, {"conflict", summary(state)}
  end
  local is_repeat = digest == new.digest
  if not (is_repeat and new.extras.unique) and may_follow(state, new, now) then
    if state.born ~= over then
      return nil, {"abandoned", summary(state)}
    end
    return state
  elseif not is_repeat then
    return nil, {new.extras.unique and "kept" or "conflict", summary(state)}
  end
  local chunks, chain = chain_of()
  return nil, {"exists", chunks, chain, state.open, summary(state), queued_tokens(state, now), new.own and left_out()}
end
