-- Appends ARGV[first...] to the stream. An entry's id is <ms>-<index>: when it was submitted and
-- which line of the input it is, for no bytes more than an automatic id.
local MAX_ENTRIES = 1000

local function entry_error(first)
  local count = #ARGV - first + 1
  if count > MAX_ENTRIES then
    return redis.error_reply("BADCHUNK " .. count .. " sub-requests in one call; the most is " .. MAX_ENTRIES)
  end
end

local function add_entries(state, now, first)
  state.last_ms = math.max(now, state.last_ms)  -- ids must grow, whatever the clock does
  local prefix = string.format("%.0f-", state.last_ms)
  local index = state.total
  for i = first, #ARGV do
    redis.call("XADD", stream, prefix .. index, "b", ARGV[i])
    state.max_body = math.max(state.max_body, #ARGV[i])
    index = index + 1
  end
  local count = index - state.total
  state.total, state.fresh = index, state.fresh + count
  return count
end
