-- Reads the arguments of exchange.
-- @include lib/lease/acquire.lua
-- @include lib/lease/complete.lua

local function whole(text, most)
  local number = string.find(text or "", "^%d+$") and tonumber(text)
  return number and number <= most and number
end

-- Returns request -> size, and the leases to be settled; or nil, nil and the refusal.
local function read_exchange(args, at, measured)
  local size_of, held = {}, {}
  for i = at, at + 2 * measured - 1, 2 do
    size_of[args[i] or ""] = tonumber(args[i + 1])
    local refused = acquire_error(tonumber(args[i + 1]))
    if refused then
      return nil, nil, refused
    end
  end
  at = at + 2 * measured
  while at <= #args do
    local done, others = whole(args[at + 4], 1000), whole(args[at + 5], 1000)
    local last = done and others and at + 5 + 3 * done + 5 * others
    if not last or last > #args then
      return nil, nil, redis.error_reply("BADARGUMENT exchange wants six values of each lease, and what they announce")
    end
    local work, refused = read_work(args, at + 6, done, last)
    if refused then
      return nil, nil, refused
    end
    held[#held + 1] = {id = args[at], k = args[at + 1], fence = args[at + 2], op = args[at + 3], keep = "u", work = work}
    at = last + 1
  end
  return size_of, held
end
