-- After the deadline, makes dead what still waits: a bounded number a call, the rest in later calls.
-- @include lib/entries/dead_letter.lua
-- @include lib/entries/retry_queue.lua
-- @include lib/entries/take_slice.lua
-- @include lib/lease/take_back.lua
local function bury_late(state, now, id, attempt)
  local submitted, index = string.match(id, "^(%d+)-(%d+)$")
  local waited = math.max(0, now - tonumber(submitted))
  bury(state, id, {head = index .. ":x:" .. attempt .. ":" .. waited .. ":0", reason = "deadline", worker = "-",
    error = "the request's deadline passed before it could start"})
end

local function bury_the_rest(state, now)
  local room = math.max(1, math.min(BITE, math.floor(4 * SLICE_BYTES / math.max(1, state.max_body))))
  for _, entry in ipairs(pending_of("-")) do
    if room == 0 then
      return true
    end
    bury_late(state, now, entry[1], entry[4])
    room = room - 1
  end
  local fresh = room > 0 and read_fresh("-", room) or {}
  for _, entry in ipairs(fresh) do
    bury_late(state, now, entry[1], 0)
  end
  state.fresh = state.fresh - #fresh
  return #fresh == room
end
