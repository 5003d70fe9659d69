# `kermes pull` fetches by libcurl, which the command opens when it is asked to: the header alone is
# needed here, and nothing is linked.
find_path(KERMES_CURL_INCLUDE curl/curl.h DOC "The folder of curl/curl.h")
add_library(kermes_curl INTERFACE)
if(KERMES_CURL_INCLUDE)
    target_compile_definitions(kermes_curl INTERFACE KERMES_CURL)
    target_include_directories(kermes_curl SYSTEM INTERFACE ${KERMES_CURL_INCLUDE})
else()
    message(STATUS "Kermes: no `kermes pull` in this build, since curl/curl.h is missing (scripts/setup)")
endif()
