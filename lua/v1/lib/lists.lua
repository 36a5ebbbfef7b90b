-- Lists of messages that are no requests.

-- ------------------------------------------------------------------ shortest list

-- Returns the index of the shortest list, the first one of those that are equally short, and counts one message more in it.
local function take_shortest(lengths, count)
  local best = 0
  for i = 1, count - 1 do
    if lengths[i] < lengths[best] then
      best = i
    end
  end
  lengths[best] = lengths[best] + 1
  return best
end

-- ------------------------------------------------------------------ oldest messages

-- Returns the oldest of these messages, which are newest first: oldest first, and at most 1 MiB, but for a single message.
local MOST_BYTES = 1048576

local function oldest_first(found)
  local first, bytes = {}, 0
  for i = #found, 1, -1 do
    bytes = bytes + #found[i]
    if bytes > MOST_BYTES and #first > 0 then
      break
    end
    first[#first + 1] = found[i]
  end
  return first
end
