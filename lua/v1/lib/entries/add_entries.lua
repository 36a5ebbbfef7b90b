-- Appends list[first..last] to the stream. An entry's id is <ms>-<index>: when it was submitted, and which line of the
-- input it is. Such an id is no longer than an automatic one.
local MAX_ENTRIES = 1000

local function entry_error(first, last)
  local count = last - first + 1
  if count > MAX_ENTRIES then
    return redis.error_reply("BADCHUNK " .. count .. " sub-requests in one call; the most is " .. MAX_ENTRIES)
  end
end

local function add_entries(state, now, list, first, last)
  state.last_ms = math.max(now, state.last_ms)  -- ids must grow, whatever the clock does
  local format, most = string.format, state.max_body
  local id, index = format("%.0f-%%d", state.last_ms), state.total  -- format is quicker than `..` with a number
  for i = first, last do
    local body = list[i]
    redis.call("XADD", stream, format(id, index), "b", body)
    most = math.max(most, #body)
    index = index + 1
  end
  local count = index - state.total
  state.total, state.fresh, state.max_body = index, state.fresh + count, most
  return count
end
