-- A stream takes 4 KiB for its first entry, and time to make and to delete. So the few sub-requests of a small request
-- wait in one string, "<length>:<body>" each. `few` in the counts is 1 while they wait, and 2 while one lease holds all
-- of them. The request then has no stream and no counter, and the lease may settle all of them as done in one call. Any
-- other call first pours them into a stream, as any other request has; then `few` is 0.
-- @include lib/core/state.lua
-- @include lib/permits/permits.lua
local FEW = 10
local FEW_BYTES = 1024

local function are_few(list, first, last)
  if last - first + 1 > FEW then
    return false
  end
  local bytes = 0
  for i = first, last do
    bytes = bytes + #list[i]
  end
  return bytes <= FEW_BYTES
end

local function keep_few(state, now, list, first, last)
  local parts = {}
  for i = first, last do
    parts[#parts + 1] = #list[i] .. ":" .. list[i]
    state.max_body = math.max(state.max_body, #list[i])
  end
  redis.call("SET", few, table.concat(parts))
  state.total, state.fresh, state.few, state.last_ms = #parts, #parts, 1, now
end

local function read_few(state)
  local text = state.few > 0 and redis.call("GET", few)
  if not text then  -- or they were deleted: then there is no stream either
    return nil
  end
  local entries, prefix, at = {}, string.format("%.0f-", state.last_ms), 1
  while at <= #text do
    local _, colon, length = string.find(text, "^(%d+):", at)
    at = colon + 1 + length
    entries[#entries + 1] = {prefix .. #entries, {"b", string.sub(text, colon + 1, at - 1)}}
  end
  return entries
end

local function pour(state)
  local entries = read_few(state)
  if not entries then
    return
  end
  redis.call("UNLINK", stream, results)  -- left by a call that was refused in the middle
  redis.call("SET", counter, state.total + state.open)
  for _, entry in ipairs(entries) do
    redis.call("XADD", stream, entry[1], unpack(entry[2]))
  end
  redis.call("XGROUP", "CREATE", stream, stream, "0")
  if state.few == 2 then
    local k = redis.call("ZRANGE", leases, 0, 0)[1]
    local permit = k and read_permit(k)
    if permit and permit.kind == "h" then
      redis.call("XREADGROUP", "GROUP", stream, consumer_of(permit, k), "STREAMS", stream, ">")
    else
      state.fresh = state.total  -- its lease or permit was deleted: no lease holds them
    end
  end
  state.few = 0
  save_state(state)  -- before the bodies go, because the state says where they are
  redis.call("UNLINK", few)
end
