-- Makes a sub-request dead that has no attempts left or was rejected. Adds its failure to `out`. Keeps it in `dead` for
-- requeue_dead, with its body, its reason and the id of its entry in `out`. Both name the text of the error. Then
-- acknowledges it. The sub-request is pending. A text that a refused command leaves behind is kept until the request goes.
-- `why` = head (of its result), reason (one word), error (text), worker.
-- @include lib/entries/error_texts.lua
-- @include lib/lease/count_down.lua
local function bury(state, id, why)
  check_acknowledge()
  local found = redis.call("XRANGE", stream, id, id)
  local body = found[1] and found[1][2][2] or ""
  local name = keep_error(why.error)
  local out = redis.call("XADD", results, "*", "w", why.worker, why.head, name)
  local kept = redis.pcall("XADD", dead, "*", "head", why.head, "reason", why.reason, "error", name,
    "worker", why.worker, "out", out, "body", body)
  if type(kept) == "table" then
    undo(kept, {out})
  end
  count_down(state, 1, {out}, kept, id)
  redis.call("XDEL", stream, id)
  redis.call("ZREM", retries, id)
  state.dead = state.dead + 1
end
