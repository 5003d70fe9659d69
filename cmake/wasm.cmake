# The module for browsers and Node, kermes-wasm.js with kermes-wasm.wasm: the library behind the flat
# interface of web/engine. The page and everything it loads is put together in build/wasm/web, a folder
# that any static server can offer.
set(KERMES_WEB ${PROJECT_BINARY_DIR}/web)
file(GLOB kermes_engine_sources CONFIGURE_DEPENDS web/engine/*.c)
file(GLOB kermes_page_files CONFIGURE_DEPENDS web/*.html web/*.css web/*.js web/*.ts)

set(KERMES_WASM_LINK
    -sMODULARIZE=1 -sEXPORT_ES6=1 -sENVIRONMENT=web,worker,node
    -sALLOW_MEMORY_GROWTH=1 -sINITIAL_MEMORY=32MB -sMAXIMUM_MEMORY=4GB -sTOTAL_STACK=4MB
    -sFORCE_FILESYSTEM=1 -sEXIT_RUNTIME=0 -sASSERTIONS=0
    -sEXPORTED_RUNTIME_METHODS=FS,UTF8ToString,stringToUTF8,lengthBytesUTF8,ENV
    -sINCOMING_MODULE_JS_API=wasmBinary,kermes,preRun,print,printErr,locateFile)

# Emscripten needs acorn, which Debian puts where only Debian's Node looks.
if(EXISTS /usr/share/nodejs/acorn)
    set_property(GLOBAL PROPERTY RULE_LAUNCH_LINK "${CMAKE_COMMAND} -E env NODE_PATH=/usr/share/nodejs")
endif()

add_executable(kermes_wasm ${kermes_engine_sources} ${kermes_object_files})
kermes_compile(kermes_wasm)
target_link_libraries(kermes_wasm PRIVATE ${KERMES_LIBRARIES})
# -O1: beyond it, wasm-opt takes ten minutes over kernels that LLVM has optimised already.
target_link_options(kermes_wasm PRIVATE --no-entry -O1 ${KERMES_WASM_LINK})
set_target_properties(kermes_wasm PROPERTIES OUTPUT_NAME kermes-wasm SUFFIX .js LINKER_LANGUAGE C
    RUNTIME_OUTPUT_DIRECTORY ${KERMES_WEB})

# `kermes verify` and the like for Node, with the machine's own files.
add_executable(kermes_wasm_verify EXCLUDE_FROM_ALL tests/web/verify.c web/engine/system.c ${kermes_object_files})
kermes_compile(kermes_wasm_verify)
target_link_libraries(kermes_wasm_verify PRIVATE ${KERMES_LIBRARIES})
target_link_options(kermes_wasm_verify PRIVATE -sALLOW_MEMORY_GROWTH=1 -sINITIAL_MEMORY=32MB
    -sMAXIMUM_MEMORY=4GB -sENVIRONMENT=node -sEXIT_RUNTIME=1 -O1)
set_target_properties(kermes_wasm_verify PROPERTIES OUTPUT_NAME verify SUFFIX .js LINKER_LANGUAGE C
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

set(copied)
foreach(file IN LISTS kermes_page_files ITEMS ${PROJECT_SOURCE_DIR}/models/kermes-tiny.gguf)
    get_filename_component(name ${file} NAME)
    add_custom_command(OUTPUT ${KERMES_WEB}/${name} COMMAND ${CMAKE_COMMAND} -E copy ${file} ${KERMES_WEB}/${name}
        DEPENDS ${file} VERBATIM COMMENT "Copying ${name}")
    list(APPEND copied ${KERMES_WEB}/${name})
endforeach()
add_custom_target(kermes_page ALL DEPENDS ${copied})
