-- What a producer asks for besides the policy, in one argument: lines "name=value", each name at most once.
--   parent   the request whose dead sub-requests these were
--   tags     names with commas between them
--   tenant   a name; share: how much time it gets beside other tenants, 1..999
--   delay    ms from now, or start: ms of this server's clock, before which nothing starts
--   rates    see lib/gate/gate.lua
--   ageing   ms: if nothing has started for so long, one slice goes first, see lib/gate/ageing.lua
--   after    "done:" or "end:" and lives with commas between them: the request starts when all of these are done, or ended.
--            A life is "<id>|<born>|<queue>", or "<id>|over" if it has ended as it should
--   flow     the flow, the number of this step, how many steps there are, and the step
--   by       who submitted it, as the server of the HTTP API names its callers
--   trace    the context of the producer's span: a traceparent, and after a space a tracestate (W3C Trace Context)
--   distinct 1: each sub-request has an id, and comes once, see lib/ids/distinct.lua
--   feed     what this open request gets from others, see lib/gate/chore.lua
--   unique   ms and a random text of the submission: another life may follow an ended one that began so long ago
-- @include lib/gate/gate.lua
local NOTHING = {}

-- @rare
local function parse_extras(text)
  local patterns = {distinct = "^1$", unique = "^%d+:%x+$", parent = "^[%w_.:-]+$", tags = "^[%w_.:-][%w_.:,-]*$", tenant = "^[%w_.:-]+$", share = "^[1-9]%d?%d?$", delay = "^%d+$", start = "^%d+$",
    ageing = "^[1-9]%d*$", flow = "^[%w_.:-]+ %d+ %d+ [%w_.:-]+$", feed = "^%l+ [%w_.:,-]+ [%l,]+ [%w_.:-]+ %d+ ?[%x.]*$", after = "^%l+:[%w_.:-][%w_.:,|-]*$",
    rates = "^%d+ ", by = "^[%w_.:-]+$", trace = "^%x%x%-%x+%-%x+%-%x%x ?[!-~]*$"}
  local found = {}
  for line in string.gmatch(text .. "\n", "([^\n]*)\n") do
    local name, value = string.match(line, "^(%l+)=(.*)$")
    if not name or not patterns[name] or found[name] or not string.find(value, patterns[name])
      or name == "rates" and not are_rates(value) then
      return nil, redis.error_reply("BADARGUMENT lines name=value are expected as extras")
    end
    found[name] = value
  end
  return found
end

-- Returns name -> value, or nil and the refusal. Most requests have no extras, and this is all that they pay for them.
local function read_extras(text)
  if text == "" then
    return NOTHING
  end
  return parse_extras(text)
end

-- Returns the gate of a new request.
local function first_gate(extras, now)
  if extras == NOTHING then
    return OPEN
  end
  local opens = tonumber(extras.start) or extras.delay and now + tonumber(extras.delay) or 0
  local wait = not extras.start and tonumber(extras.delay) or 0
  if extras.after then
    opens, wait = NEVER, 0
  end
  return {opens = opens > now and opens or 0, rates = extras.rates or "", is_limited = false, wait = wait,
    turn = extras.tenant and (extras.share or "1") .. ":" .. extras.tenant or ""}
end

-- Returns the fields of the hash that hold the extras, and how many sub-requests were left out, if any may be.
-- @rare
local function extra_fields(extras, gate, left)
  local fields = {}
  for _, name in ipairs({"parent", "tags", "tenant", "share", "ageing", "after", "flow", "feed", "by", "trace"}) do
    if extras[name] then
      fields[#fields + 1], fields[#fields + 2] = name, extras[name]
    end
  end
  if gate.opens > 0 or gate.rates ~= "" or gate.turn ~= "" then
    fields[#fields + 1], fields[#fields + 2] = "gate", gate_text(gate)
  end
  if left then
    fields[#fields + 1], fields[#fields + 2] = "left_out", left
  end
  return fields
end
