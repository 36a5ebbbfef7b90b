-- A sub-request out of attempts or rejected: acknowledged first, then told to the readers of results,
-- and kept with its body, its reason and the entry of `out` that tells of it, for requeue_dead.
-- `why` = head (of its result), reason (one word), error (text), worker.
local function bury(state, id, why)
  local found = redis.call("XRANGE", stream, id, id)
  if redis.call("XACK", stream, stream, id) == 0 then
    return
  end
  redis.call("XDEL", stream, id)
  redis.call("ZREM", retries, id)
  local body = found[1] and found[1][2][2] or ""
  local out = redis.call("XADD", results, "*", "w", why.worker, why.head, why.error)
  redis.call("XADD", dead, "*", "head", why.head, "reason", why.reason, "error", why.error,
    "worker", why.worker, "out", out, "body", body)
  state.left = redis.call("DECRBY", counter, 1)
  state.dead = state.dead + 1
end
