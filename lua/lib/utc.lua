-- Milliseconds since 1970 as text: 2026-11-21T19:42:13Z. A call names few different seconds, so each is worked out once.
-- sets:  is_leap MONTHS utc utc_texts
local MONTHS = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }

local function is_leap(year) return year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0) end

local utc_texts = {}

local function utc(ms)
  local seconds = floor(ms / 1000)
  if utc_texts[seconds] then return utc_texts[seconds] end
  local days, second, year, month = floor(seconds / 86400), seconds % 86400, 1970, 1
  while days >= (is_leap(year) and 366 or 365) do
    days, year = days - (is_leap(year) and 366 or 365), year + 1
  end
  MONTHS[2] = is_leap(year) and 29 or 28
  while days >= MONTHS[month] do
    days, month = days - MONTHS[month], month + 1
  end
  local minute = floor(second / 60)
  utc_texts[seconds] = string.format('%04d-%02d-%02dT%02d:%02d:%02dZ', year, month, days + 1, floor(minute / 60), minute % 60, second % 60)
  return utc_texts[seconds]
end
