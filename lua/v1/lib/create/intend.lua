-- Leaves a trace of ids[first..last] in `active`; returns the reply of intend, or nil and an error.
-- @include lib/core/layout.lua
local function intend(now, grace, above, ids, first, last)
  local known = redis.call("HMGET", conf, "max_waiting", "shards", "layout")
  local refused = layout_error(known[3])
  if refused then
    return nil, refused
  end
  local before = redis.call("ZMSCORE", active, unpack(ids, first, last))
  local least = math.max(above + 1, now + grace)  -- each intent is newer than all that the auditor has seen
  local announced = {tonumber(known[1] or 0) or 0, known[2] or ""}  -- a damaged bound is none
  local entries = {}
  for i, former in ipairs(before) do
    local score = least
    if former then
      score = math.max(math.floor(tonumber(former)) + 1, least)
    end
    entries[2 * i - 1], entries[2 * i] = score, ids[first + i - 1]
    announced[2 * i + 1], announced[2 * i + 2] = score, former or "0"
  end
  redis.call("ZADD", active, unpack(entries))
  return announced
end
