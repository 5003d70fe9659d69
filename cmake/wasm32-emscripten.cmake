# For cmake --preset wasm: WebAssembly by Emscripten (Debian: emscripten), wherever it is installed. Its
# own platform file does the work; vectors of 128 bits are in every browser since 2023 and are always on.
find_program(KERMES_EMCC emcc DOC "Emscripten's compiler")
if(NOT KERMES_EMCC)
    message(FATAL_ERROR "emcc was not found: Debian's package is emscripten")
endif()
get_filename_component(kermes_emcc_file ${KERMES_EMCC} REALPATH)
get_filename_component(kermes_emcc_folder ${kermes_emcc_file} DIRECTORY)
include(${kermes_emcc_folder}/cmake/Modules/Platform/Emscripten.cmake)
set(CMAKE_C_FLAGS_INIT "-msimd128")
